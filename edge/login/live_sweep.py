"""Sweeps over live clients after a reload of a listener's files: clients without permission are closed.

Each iteration checks a slice of clients. Later logins are checked by the new files, so a sweep covers only the clients
at its start.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["SLICE", "LiveSweep"]

SLICE = 1_000  # clients of one iteration: well below 1 ms

C = TypeVar("C")


class LiveSweep(Generic[C]):
    """Checks clients in slices.

    Args:
        clients: Returns all clients of this edge.
        end: Closes one.
        slice_max: Clients of one iteration.
    """

    def __init__(self, clients: Callable[[], Sequence[C]], end: Callable[[C], None], slice_max: int = SLICE) -> None:
        self._clients = clients
        self._end = end
        self._slice_max = slice_max
        self._sweeps: deque[tuple[list[C], Callable[[C], bool]]] = deque()

    @property
    def busy(self) -> bool:
        """Whether a sweep is in progress."""
        return bool(self._sweeps)

    def begin(self, is_gone: Callable[[C], bool]) -> None:
        """Close, from the next iteration on, each client for which ``is_gone`` returns True."""
        self._sweeps.append((list(self._clients()), is_gone))

    def step(self) -> None:
        """Check a slice."""
        if not self._sweeps:
            return
        clients, is_gone = self._sweeps[0]
        for client in clients[-self._slice_max :]:
            if is_gone(client):
                self._end(client)
        del clients[-self._slice_max :]
        if not clients:
            self._sweeps.popleft()
