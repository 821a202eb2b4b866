"""Which tests stay together when several workers share them (``make test`` has three; most tests wait, on two cores).

The files that start whole clusters are dealt to two groups, so that two run beside each other and never three, which
would wait for each other's processors; those of the jobs share one Spark session; any other file stays whole, for the
fixtures of its module.
"""

import zlib
from typing import Any

__all__ = ["group_of", "scheduler"]

CLUSTERS = ("tests/e2e/", "tests/chaos/")
AT_ONCE = 2
JOBS = "tests/jobs/"


def group_of(test: str) -> str:
    """Return the group of a test by its node ID; one worker runs a group, in order."""
    path = test.split("::", 1)[0]
    if path.startswith(CLUSTERS):
        return f"clusters {zlib.crc32(path.encode()) % AT_ONCE}"
    return "jobs" if path.startswith(JOBS) else path


def scheduler(config: Any, log: Any) -> Any:
    """Return what deals out groups instead of single tests."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)
