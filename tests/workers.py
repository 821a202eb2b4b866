"""Which tests stay together when several workers share them (``make test`` has two, one for each core).

Those that start whole clusters run one after the other, so that two clusters do not wait for each other's processors;
those of the jobs share one Spark session; any other file stays whole, for the fixtures of its module.
"""

from typing import Any

__all__ = ["group_of", "scheduler"]

TOGETHER = {"tests/e2e": "clusters", "tests/chaos": "clusters", "tests/jobs": "jobs"}


def group_of(test: str) -> str:
    """Return the group of a test by its node ID; one worker runs a group, in order."""
    path = test.split("::", 1)[0]
    return next((group for folder, group in TOGETHER.items() if path.startswith(f"{folder}/")), path)


def scheduler(config: Any, log: Any) -> Any:
    """Return what deals out groups instead of single tests."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)
