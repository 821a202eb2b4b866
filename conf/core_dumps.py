"""No process of ours leaves its memory behind when it crashes: keys, passwords and payloads are in it.

The kernel is asked by the limit of core files alone; why not by PR_SET_DUMPABLE: docs/adr/0206-no-core-dumps.md.
"""

import resource
from pathlib import Path

__all__ = ["core_dump_goes_to", "forbid_core_dumps"]

# Of a file the kernel writes none below a page, and to a program (`|/path` in core_pattern) it hands none at exactly
# this limit, by which it ends programs that crash while they take a core. 0 would stop the file alone: core(5).
CORE_BYTES = 1
PAGE_BYTES = 4_096
PATTERN = Path("/proc/sys/kernel/core_pattern")


def forbid_core_dumps() -> None:
    """Let the kernel keep no core of this process, nor of those that it starts.

    The hard limit stays, so that ``prlimit --core=unlimited: --pid PID`` allows one to whoever looks for a fault. Where
    it is 0 the soft one is too: a program may still be handed a core (``core_dump_goes_to``).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (CORE_BYTES if hard else 0, hard))


def core_dump_goes_to(pattern_file: Path = PATTERN) -> str:
    """Return where the kernel would put a core of this process, as its pattern says; "" where it keeps none."""
    try:
        pattern = pattern_file.read_text(errors="replace").strip()
    except OSError:
        pattern = "core"
    soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
    unlimited = soft == resource.RLIM_INFINITY or soft >= PAGE_BYTES
    if pattern.startswith("@"):
        return pattern  # a socket, since Linux 6.16: no limit is looked at
    if pattern.startswith("|"):
        return pattern if soft != CORE_BYTES else ""
    return pattern if unlimited else ""
