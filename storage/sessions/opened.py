"""Which CONNECTs were carried out: one that is sent again takes over nothing, and publishes no will a second time.

An edge keeps an OpenSession until it is answered and sends it again to a new primary. Until then the connection that it
opened may have ended, or been followed by another one; carrying it out again would take over the newer connection and
make a second will of the first. So the operation that carries it out writes a row that says so, until its edge tells
that it took the answer (``OpenSession.answered_below``) or is dead. What stays in memory anyway (no will, no durable
session) is remembered in memory only. Rules: docs/protocol.md rule 6.5.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from storage.state import keys
from storage.state.partition import Partition
from storage.state.rows import OpenedRow, pack
from wire.messages.sessions import OpenSession

__all__ = ["OpenedConnects"]


class _FromEdge:
    """The requests of one edge's incarnation."""

    __slots__ = ("below", "done", "numbers")

    def __init__(self) -> None:
        self.below = 0  # every request with a lower number was answered, and the answer taken
        self.done: dict[int, bool] = {}  # request: whether it has a row
        self.numbers: list[int] = []  # a heap of ``done``


class OpenedConnects:
    """The memory of one partition. Bounded by what its edges have in flight."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._edges: dict[tuple[str, int], _FromEdge] = {}

    def __len__(self) -> int:
        return sum(len(known.done) for known in self._edges.values())

    def _of(self, edge: str, incarnation: int) -> _FromEdge:
        known = self._edges.get((edge, incarnation))
        if known is None:
            known = self._edges[edge, incarnation] = _FromEdge()
        return known

    def restore(self, row: OpenedRow) -> None:
        """Take over a row from disk."""
        self._add(row.edge, row.incarnation, row.request, stored=True)

    def _add(self, edge: str, incarnation: int, request: int, *, stored: bool) -> None:
        known = self._of(edge, incarnation)
        if request not in known.done:
            heappush(known.numbers, request)
        known.done[request] = stored or known.done.get(request, False)

    def remember(self, edge: str, incarnation: int, request: int, *, stored: bool) -> None:
        """A CONNECT is carried out with the operation being built; ``stored``: by a row, for whoever serves next."""
        self._add(edge, incarnation, request, stored=stored)
        if stored:
            key = keys.opened_key(self._partition.number, edge, incarnation, request)
            self._partition.put(key, pack(OpenedRow(edge, incarnation, request)))

    def take_up(self, edge: str, incarnation: int, request: OpenSession) -> bool:
        """Forget what the edge has the answers of; return whether this CONNECT had its effect before.

        It may have had it here, or at a former primary.
        """
        known = self._of(edge, incarnation)
        if request.answered_below > known.below:
            known.below = request.answered_below
        while known.numbers and known.numbers[0] < known.below:
            self._drop(edge, incarnation, known, heappop(known.numbers))
        return request.request < known.below or request.request in known.done

    def _drop(self, edge: str, incarnation: int, known: _FromEdge, request: int) -> None:
        if known.done.pop(request):
            self._partition.delete(keys.opened_key(self._partition.number, edge, incarnation, request))

    def forget(self, edge: str, incarnation: int) -> Iterator[int]:
        """The edge's incarnation is dead, and asks nothing any more; yields a step of ten microseconds for each row."""
        known = self._edges.get((edge, incarnation))
        if known is None:
            return
        for request in sorted(known.done):
            if request in known.done:
                self._drop(edge, incarnation, known, request)
                yield 1
        self._edges.pop((edge, incarnation), None)

    def forget_dead(self, is_alive: Callable[[str, int], bool]) -> Iterator[int]:
        """Forget the edges that died while this partition was not served; yields steps likewise."""
        for edge, incarnation in sorted(self._edges):
            if not is_alive(edge, incarnation):
                yield from self.forget(edge, incarnation)
