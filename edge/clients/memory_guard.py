"""Memory protection of an edge: it refuses new clients first, then disconnects those with the most memory.

The loop keeps the sum (``edge/loop/memory.py``), which is compared with ``edge.memory_max``. Without a bound on the sum
a thousand clients within their own bounds use a gigabyte, and the kernel kills the process.
"""

from collections.abc import Callable
from pathlib import Path

from edge.loop.state import LoopConnection
from edge.node.ports import HeldBytes

__all__ = ["MemoryGuard", "available_bytes"]

REFUSE_ABOVE = 0.70  # of memory_max: new clients get 0x89
CUT_ABOVE = 0.85  # clients with the most memory are disconnected, until
CUT_TO = 0.75
CUT_MAX = 50  # in an iteration
CGROUP = Path("/sys/fs/cgroup/memory.max")


class MemoryGuard:
    """Bounds the memory that the clients of one edge use.

    Args:
        loop: Counts the bytes.
        bytes_max: ``edge.memory_max`` in bytes, see ``bound``.
        cut: Disconnects a client; called with the largest holders first.
    """

    def __init__(self, loop: HeldBytes, bytes_max: int, cut: Callable[[LoopConnection], None]) -> None:
        self._loop = loop
        self._cut = cut
        self.bound(bytes_max)

    def bound(self, bytes_max: int) -> None:
        """Set another bound; 0: half of the memory available to this process."""
        bytes_max = bytes_max or available_bytes() // 2
        self._refuse_above = int(bytes_max * REFUSE_ABOVE)
        self._cut_to = int(bytes_max * CUT_TO)
        self._loop.bound_held_bytes(int(bytes_max * CUT_ABOVE))

    @property
    def refuses(self) -> bool:
        """Whether new clients are refused."""
        return self._loop.held_bytes > self._refuse_above

    def exceeded(self) -> None:
        """Disconnect the clients with the most memory, until the sum is below the lower bound."""
        for conn in self._loop.largest_holders(CUT_MAX):
            if self._loop.held_bytes <= self._cut_to:
                return
            self._cut(conn)


def available_bytes(cgroup: Path = CGROUP, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes available to this process: its cgroup's limit, or else the machine's memory."""
    total = int(meminfo.read_text().split(maxsplit=2)[1]) * 1024
    try:
        limit = cgroup.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
