"""Time slices of gossip in a node's loop: messages of one member must not delay clients more than other work does.

A holder of the key may send datagrams and exchanges of the most expensive content at full rate.
"""

import time

import trio

__all__ = ["PIECE", "Slice"]

SLICE_S = 0.000_2  # like all work of an edge that is not for clients
PIECE = 8  # messages or records per call of the core: about 0.1 ms of the most expensive


class Slice:
    """The repeated time slice of one piece of work."""

    def __init__(self) -> None:
        self._ends = time.perf_counter() + SLICE_S

    async def rest(self) -> None:
        """Let other tasks run once the slice is used."""
        if time.perf_counter() >= self._ends:
            await trio.lowlevel.checkpoint()
            self._ends = time.perf_counter() + SLICE_S
