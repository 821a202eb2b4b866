"""Processed CONNECTs: a retransmitted one takes over no connection and publishes no second will.

An edge keeps an OpenSession until it is answered and sends it again to a new primary. By then the opened connection
may have ended or been replaced. Processing it again would take over the newer connection and create a second will.
Therefore the operation of a CONNECT writes a row that records it. The row is deleted when its edge acknowledges the
response (``OpenSession.answered_below``) or is dead. A CONNECT without will and durable session is remembered in
memory only. Rules: docs/protocol.md rule 6.5.
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
        self.below = 0  # the edge has the response of every request with a lower number
        self.done: dict[int, bool] = {}  # request: whether it has a row
        self.numbers: list[int] = []  # a heap of the keys of ``done``


class OpenedConnects:
    """The processed CONNECTs of one partition, bounded by its edges' requests in flight."""

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
        """Restore a row from disk."""
        self._add(row.edge, row.incarnation, row.request, stored=True)

    def _add(self, edge: str, incarnation: int, request: int, *, stored: bool) -> None:
        known = self._of(edge, incarnation)
        if request not in known.done:
            heappush(known.numbers, request)
        known.done[request] = stored or known.done.get(request, False)

    def remember(self, edge: str, incarnation: int, request: int, *, stored: bool) -> None:
        """Record a CONNECT processed by the operation being built; ``stored``: in a row, for a later primary."""
        self._add(edge, incarnation, request, stored=stored)
        if stored:
            key = keys.opened_key(self._partition.number, edge, incarnation, request)
            self._partition.put(key, pack(OpenedRow(edge, incarnation, request)))

    def process_pending(self, edge: str, incarnation: int, request: OpenSession) -> bool:
        """Forget requests that the edge has responses to; return whether this CONNECT was processed before.

        It may have been processed here or at a former primary.
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
        """Forget a dead edge's incarnation; yields a step of ten microseconds for each row."""
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
