"""Operators at a storage node's core: their looks. Verbs are the service's (``storage/service.py``)."""

from collections.abc import Callable

from access.operators.audit_chain import AuditRecord
from access.operators.commands import operator_of
from access.operators.orders import order_record, refusal_of
from storage.hosting.iteration import Iteration
from wire.messages.hello import TIER_STORAGE, PeerKey
from wire.messages.orders import NodeOrdered, OrderNode
from wire.messages.queries import Query, StartTrace, StopTrace
from wire.messages.running_traces import RunningTrace
from wire.queries.journal import Journal
from wire.queries.pace import QueryBounds
from wire.queries.query_server import QueryServer
from wire.queries.source import RowSource
from wire.queries.tracer import Tracer

__all__ = ["StorageOperators"]

STORAGE_BOUNDS = QueryBounds(rows=5_000, seconds=0.002, reply_bytes=256 * 1024)


class StorageOperators:
    """Operators of one node.

    Args:
        node: Its name.
        turn: Time, and the way out.
        traces: Its traces.
        journal: Where refused orders are written down.
        map_epoch: Of the map as this node has it.
    """

    def __init__(
        self,
        node: str,
        turn: Iteration,
        sources: dict[str, RowSource],
        traces: Tracer,
        journal: Journal,
        map_epoch: Callable[[], int],
    ) -> None:
        self.audit: Callable[[AuditRecord], None] = lambda _: None  # the service puts the node's audit here
        self._turn = turn
        self._journal = journal
        self._traces = traces
        sources = sources | traces.sources()
        self.desk = QueryServer(node, TIER_STORAGE, STORAGE_BOUNDS, sources, turn.tell, map_epoch)
        self.desk.traces = traces

    def take(self, peer: PeerKey, message: Query | StartTrace | StopTrace) -> None:
        """Take a look, which is answered at the end of a turn, or an order about a trace."""
        operator = operator_of(peer)
        role = operator.role.name.lower() if operator is not None else ""
        if isinstance(message, Query):
            self.desk.ask(self._turn.now, peer.node, role, message)
        else:
            self._turn.tell(peer.node, self._traces.asked(self._turn.now, role, message))

    def allow(self, router: str, order: OrderNode) -> bool:
        """Judge an order once more, whatever the router said; one that is refused is answered and written down."""
        refusal = refusal_of(order)
        if not order.dry_run:
            self.audit(order_record(order, router, refusal))
        if refusal:
            self._journal.note("refused", "verb", detail=f"{order.verb} by {router}: {refusal}")
            self._turn.tell(router, NodeOrdered(order.request, error=refusal))
        return not refusal

    def ordered(self, router: str, order: OrderNode) -> None:
        """Take an order about a trace that a router has judged and passed on."""
        self._turn.tell(router, self._traces.ordered(self._turn.now, order))

    def heard(self, told: RunningTrace) -> None:
        """Take what an edge says of a trace that runs."""
        self._traces.heard(self._turn.now, told)

    def turn(self, now: float) -> None:
        """Answer looks at the end of a turn, and end traces whose time is over."""
        if now >= self._traces.next_deadline():
            self._traces.step(now)
        self.desk.turn(now)

    def next_deadline(self) -> float:
        """Return when ``turn`` has something to do."""
        return min(self.desk.next_deadline(), self._traces.next_deadline())

    def gone(self, peer: PeerKey) -> None:
        """Forget an operator whose link ended."""
        self.desk.gone(peer.node)
