"""Operators at an edge: their links, their queries, and verbs about this edge and its clients.

``wire/links/allowed.py`` has checked that the message may come from an operator; this module checks the role. An
operator with a full link does not read, and loses the link.
"""

import logging
from collections.abc import Callable

from access.operators.commands import Refusal, operator_of
from conf.events import say
from edge.cluster.peer_table import PeerTable
from edge.node.node import EdgeNode
from edge.node.ports import LinkIO
from edge.queries.traces import EdgeTraces
from wire.messages.control import Control
from wire.messages.hello import TIER_EDGE, PeerKey
from wire.messages.operators import Admin, AdminReply
from wire.messages.orders import OrderNode
from wire.messages.queries import Query, StartTrace, StopTrace
from wire.queries.pace import QueryBounds
from wire.queries.query_server import QueryServer
from wire.queries.source import RowSource

__all__ = ["EDGE_BOUNDS", "EdgeOperators"]

logger = logging.getLogger(__name__)

EDGE_BOUNDS = QueryBounds(rows=500, seconds=0.0003, reply_bytes=32 * 1024)


class EdgeOperators:
    """Operators of one edge.

    Args:
        node: This edge.
        loop: Closes links.
        peers: Their links.
        sources: Row sources by kind of query.
        traces: Its traces.
        utc_ms: Milliseconds since the epoch.

    Attributes:
        desk: Their queries.
        verbs: Carries out a verb of an operator; set by the service.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: LinkIO,
        peers: PeerTable,
        sources: dict[str, RowSource],
        traces: EdgeTraces,
        utc_ms: Callable[[], int],
    ) -> None:
        self._node = node
        self._loop = loop
        self._peers = peers
        self.traces = traces
        sources = sources | traces.desk.sources()
        self.query_server = QueryServer(
            node.name, TIER_EDGE, EDGE_BOUNDS, sources, self.tell, lambda: node.map.epoch, utc_ms
        )
        self.query_server.traces = traces.desk
        self.verbs: Callable[[PeerKey, Admin], AdminReply | None] = _no_verbs

    def take(self, key: PeerKey, message: Control) -> None:
        """Handle a message of an operator."""
        self._node.wake()
        operator = operator_of(key)
        role = operator.role.name.lower() if operator is not None else ""
        if isinstance(message, Query):
            self.query_server.ask(self._node.now, key.node, role, message)
        elif isinstance(message, StartTrace | StopTrace):
            self.tell(key.node, self.traces.desk.asked(self._node.now, role, message))
        elif isinstance(message, Admin):
            try:
                reply = self.verbs(key, message)
            except Refusal as refusal:
                reply = AdminReply(message.request, False, None, str(refusal), 1)
            if reply is not None:
                self.tell(key.node, reply)
        else:
            self._node.count("messages_unknown")

    def ordered(self, router: str, order: OrderNode) -> None:
        """Handle an order about a trace that a router has authorized and passed on."""
        self._node.tell(router, self.traces.desk.ordered(self._node.now, order))

    def tell(self, node: str, message: Control) -> None:
        """Send a response to an operator; close the link if it is full."""
        if self._node.tell(node, message):
            return
        peer = self._peers.get(node)
        if peer is not None and peer.conn is not None:
            say(logger, "link.not_read", peer=node)
            self._loop.close(peer.conn, linger=False)

    def gone(self, key: PeerKey) -> None:
        """Remove an operator after the end of its link."""
        self.query_server.gone(key.node)
        self._peers.forget_operator(key)

    def turn(self, now: float) -> None:
        """Run queries at the end of an iteration, and continue traces."""
        if now >= self.traces.next_deadline():
            self.traces.step(now)
        if self.traces.desk.running:
            self.traces.follow(now)
        if len(self.query_server):
            self.query_server.turn(now)

    def next_deadline(self) -> float:
        """Return when ``turn`` has work; infinity without queries and traces."""
        return min(self.query_server.next_deadline(), self.traces.next_deadline())


def _no_verbs(key: PeerKey, question: Admin) -> AdminReply:
    del key
    raise Refusal(f"an edge node knows no `{question.verb[:64]}`")
