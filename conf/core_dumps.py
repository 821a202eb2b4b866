"""Prevents core dumps of our processes: they would contain keys, passwords and payloads.

Uses only the limit of core files; docs/adr/0206-no-core-dumps.md explains why PR_SET_DUMPABLE is not used.
"""

import resource
from pathlib import Path

__all__ = ["core_dump_goes_to", "forbid_core_dumps"]

# Below a page the kernel writes no core file. At exactly this limit it also starts no core program (`|/path` in
# core_pattern), a check against recursive crashes. 0 would only prevent the file: core(5).
CORE_BYTES = 1
PAGE_BYTES = 4_096
PATTERN = Path("/proc/sys/kernel/core_pattern")


def forbid_core_dumps() -> None:
    """Disable core dumps of this process and its children.

    The hard limit stays, so ``prlimit --core=unlimited: --pid PID`` can enable one for debugging. If it is 0, so is the
    soft limit, and a core program may still receive a core (``core_dump_goes_to``).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (CORE_BYTES if hard else 0, hard))


def core_dump_goes_to(pattern_file: Path = PATTERN) -> str:
    """Return the kernel's core pattern for this process; "" if core dumps are disabled."""
    try:
        pattern = pattern_file.read_text(errors="replace").strip()
    except OSError:
        pattern = "core"
    soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
    unlimited = soft == resource.RLIM_INFINITY or soft >= PAGE_BYTES
    if pattern.startswith("@"):
        return pattern  # a socket, since Linux 6.16: limits do not apply
    if pattern.startswith("|"):
        return pattern if soft != CORE_BYTES else ""
    return pattern if unlimited else ""
