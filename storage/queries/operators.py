"""Operators at a storage node's core: their queries. The service handles commands (``storage/service.py``)."""

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
        iteration: Time, and frames to send.
        sources: Row sources by resource.
        traces: Its traces.
        journal: Records refused orders.
        map_epoch: Of the map that this node has applied.
    """

    def __init__(
        self,
        node: str,
        iteration: Iteration,
        sources: dict[str, RowSource],
        traces: Tracer,
        journal: Journal,
        map_epoch: Callable[[], int],
    ) -> None:
        self.audit: Callable[[AuditRecord], None] = lambda _: None  # replaced by the service with the node's audit log
        self._iteration = iteration
        self._journal = journal
        self._traces = traces
        sources = sources | traces.sources()
        self.query_server = QueryServer(node, TIER_STORAGE, STORAGE_BOUNDS, sources, iteration.send_control, map_epoch)
        self.query_server.traces = traces

    def take(self, peer: PeerKey, message: Query | StartTrace | StopTrace) -> None:
        """Accept a query, which is answered at the end of an iteration, or process a trace request."""
        operator = operator_of(peer)
        role = operator.role.name.lower() if operator is not None else ""
        if isinstance(message, Query):
            self.query_server.ask(self._iteration.now, peer.node, role, message)
        else:
            self._iteration.send_control(peer.node, self._traces.asked(self._iteration.now, role, message))

    def allow(self, router: str, order: OrderNode) -> bool:
        """Authorize an order independently of the router; a refused one is answered and recorded."""
        refusal = refusal_of(order)
        if not order.dry_run:
            self.audit(order_record(order, router, refusal))
        if refusal:
            self._journal.note("refused", "verb", detail=f"{order.verb} by {router}: {refusal}")
            self._iteration.send_control(router, NodeOrdered(order.request, error=refusal))
        return not refusal

    def ordered(self, router: str, order: OrderNode) -> None:
        """Process an order about a trace that a router has authorized and forwarded."""
        self._iteration.send_control(router, self._traces.ordered(self._iteration.now, order))

    def heard(self, received: RunningTrace) -> None:
        """Process an edge's report about a running trace."""
        self._traces.heard(self._iteration.now, received)

    def end_iteration(self, now: float) -> None:
        """Answer queries at the end of an iteration, and end expired traces."""
        if now >= self._traces.next_deadline():
            self._traces.step(now)
        self.query_server.turn(now)

    def next_deadline(self) -> float:
        """Return when ``end_iteration`` has work."""
        return min(self.query_server.next_deadline(), self._traces.next_deadline())

    def gone(self, peer: PeerKey) -> None:
        """Remove an operator whose link ended."""
        self.query_server.gone(peer.node)
