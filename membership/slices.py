"""How long gossip has a node's loop at a time: what one member says takes no longer from the clients than the rest.

A holder of the key may fill datagrams and exchanges with whatever is dearest to take, as fast as it can.
"""

import time

import trio

__all__ = ["PIECE", "Slice"]

SLICE_S = 0.000_2  # as all that an edge does that is no client's
PIECE = 8  # messages or rows that the core takes at once: some 0.1 ms of the dearest


class Slice:
    """The time that one piece of work has, again and again."""

    def __init__(self) -> None:
        self._ends = time.perf_counter() + SLICE_S

    async def rest(self) -> None:
        """Let everybody else run once the time is over."""
        if time.perf_counter() >= self._ends:
            await trio.lowlevel.checkpoint()
            self._ends = time.perf_counter() + SLICE_S
