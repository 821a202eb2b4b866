"""Operators at an edge: their links, their looks, and verbs about this edge and its clients.

The table of rights has judged that a message may come from an operator at all (``wire/links/allowed.py``); the role is
judged here. An operator whose link has no room does not read, and loses it.
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
        loop: Where links end.
        peers: Their links.
        sources: What each kind of look shows.
        traces: Its traces.
        utc_ms: Milliseconds since the epoch.

    Attributes:
        desk: Their looks.
        verbs: Carries out a verb of an operator; the service's.
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
        self.desk = QueryServer(node.name, TIER_EDGE, EDGE_BOUNDS, sources, self.tell, lambda: node.map.epoch, utc_ms)
        self.desk.traces = traces.desk
        self.verbs: Callable[[PeerKey, Admin], AdminReply | None] = _no_verbs

    def take(self, key: PeerKey, message: Control) -> None:
        """Take a message of an operator."""
        self._node.wake()
        operator = operator_of(key)
        role = operator.role.name.lower() if operator is not None else ""
        if isinstance(message, Query):
            self.desk.ask(self._node.now, key.node, role, message)
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
        """Take an order about a trace that a router has judged and passed on."""
        self._node.tell(router, self.traces.desk.ordered(self._node.now, order))

    def tell(self, node: str, message: Control) -> None:
        """Answer an operator; one that does not read what it asked for loses its link."""
        if self._node.tell(node, message):
            return
        peer = self._peers.get(node)
        if peer is not None and peer.conn is not None:
            say(logger, "link.not_read", peer=node)
            self._loop.close(peer.conn, linger=False)

    def gone(self, key: PeerKey) -> None:
        """Forget an operator whose link ended."""
        self.desk.gone(key.node)
        self._peers.forget_operator(key)

    def turn(self, now: float) -> None:
        """Answer looks at the end of a turn, and go on with traces."""
        if now >= self.traces.next_deadline():
            self.traces.step(now)
        if self.traces.desk.running:
            self.traces.follow(now)
        if len(self.desk):
            self.desk.turn(now)

    def next_deadline(self) -> float:
        """Return when ``turn`` has something to do; infinity while nobody asks."""
        return min(self.desk.next_deadline(), self.traces.next_deadline())


def _no_verbs(key: PeerKey, question: Admin) -> AdminReply:
    del key
    raise Refusal(f"an edge node knows no `{question.verb[:64]}`")
