"""Sweeps over live clients after files of a listener were read anew: who is let in no more is closed.

A sweep looks at a slice of clients in each turn. Whoever logs in meanwhile is judged by what is new, so a sweep looks
only at those who were there when it began.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["SLICE", "LiveSweep"]

SLICE = 1_000  # clients of one turn: well below 1 ms

C = TypeVar("C")


class LiveSweep(Generic[C]):
    """Looks at clients in slices.

    Args:
        clients: Returns all clients of this edge.
        end: Closes one.
        slice_max: Clients of one turn.
    """

    def __init__(self, clients: Callable[[], Sequence[C]], end: Callable[[C], None], slice_max: int = SLICE) -> None:
        self._clients = clients
        self._end = end
        self._slice_max = slice_max
        self._sweeps: deque[tuple[list[C], Callable[[C], bool]]] = deque()

    @property
    def busy(self) -> bool:
        """Whether clients are left to look at."""
        return bool(self._sweeps)

    def begin(self, is_gone: Callable[[C], bool]) -> None:
        """Close, from the next turn on, each client that is not let in any more."""
        self._sweeps.append((list(self._clients()), is_gone))

    def step(self) -> None:
        """Look at a slice."""
        if not self._sweeps:
            return
        clients, is_gone = self._sweeps[0]
        for client in clients[-self._slice_max :]:
            if is_gone(client):
                self._end(client)
        del clients[-self._slice_max :]
        if not clients:
            self._sweeps.popleft()
