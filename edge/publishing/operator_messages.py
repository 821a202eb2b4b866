"""Messages that an operator orders: one message, or empty retained messages that clear topics.

They are sent like a client's: a retained message to its partition first, QoS 1 and 2 until every destination has
acknowledged. Then the edge replies to the router. No access rules apply here, because the router authorized the
operator. A repeated order publishes again.

| an order | state | ends when |
|---|---|---|
| accepted | topics without an outcome | all outcomes are known: replied; older than ``OPEN_S`` while another order
needs its slot |
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from edge.loop.state import InboundPublish, Route
from edge.node.node import EdgeNode
from edge.publishing.sending import MessageSender, OutgoingMessage
from edge.subscriptions.topic_routes import TopicRoutes
from mqtt.errors import MqttError
from mqtt.reasons import FAILURE
from mqtt.topics import validate_topic_name
from wire.decoding import Unreadable
from wire.messages.batches import NO_EXPIRY, OPERATOR_MADE, OPERATOR_OWNER, encode_owner
from wire.messages.orders import NodeOrdered, OrderNode, SendOrder, read_sent

__all__ = ["SEND_VERBS", "OperatorMessages"]

RETAINED_CLEAR = "retained clear"
SEND_VERBS = ("msg send", RETAINED_CLEAR)
OPEN_MAX = 32  # orders without a complete outcome
OPEN_S = 60.0  # much longer than a router's timeout; a partition without primary must not occupy all slots
ERRORS_REPORTED_MAX = 8


@dataclass(slots=True, eq=False)
class _OpenOrder:
    router: str
    request: int
    until: float
    remaining: set[str]
    sent: int = 0
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _OrderedMessage(OutgoingMessage):
    """One message of an order."""

    messages: "OperatorMessages"
    order: _OpenOrder

    @property
    def owner(self) -> bytes:
        """The operator's owner record: access rules never delete such a retained message."""
        return encode_owner(OPERATOR_OWNER, OPERATOR_MADE)

    @property
    def on_done(self) -> Callable[[int], object]:
        """Return the completion callback, for QoS 0 too."""
        return self.sent

    def finished(self, reason_code: int) -> bool:
        """Record the outcome."""
        self.messages.done(self.order, self.name, reason_code)
        return False


class OperatorMessages:
    """Executes operators' publish orders on one edge.

    Args:
        node: This edge.
        routes: Finds the Route of a topic.
        sending: Sends a message to all destinations.
    """

    def __init__(self, node: EdgeNode, routes: TopicRoutes, sending: MessageSender) -> None:
        self._node = node
        self._routes = routes
        self._sending = sending
        self._open: list[_OpenOrder] = []

    def take(self, router: str, order: OrderNode) -> None:
        """Publish the messages of an order, and reply when all outcomes are known."""
        try:
            sent = read_sent(order.subject.encode())
        except Unreadable as error:
            self._node.tell(router, NodeOrdered(order.request, error=str(error)[:200]))
            return
        rejection = self._find_error(order.verb, sent)
        now = self._node.now
        if len(self._open) >= OPEN_MAX:
            self._open = [pending for pending in self._open if now < pending.until]
        if not rejection and len(self._open) >= OPEN_MAX:
            rejection = f"{OPEN_MAX} orders wait for their messages: ask again"
        if rejection:
            self._node.tell(router, NodeOrdered(order.request, error=rejection))
            return
        open_order = _OpenOrder(router, order.request, now + OPEN_S, {*sent.topics})
        self._open.append(open_order)
        for topic in sorted(open_order.remaining):
            expiry_s = NO_EXPIRY if sent.expiry_s < 0 else sent.expiry_s
            publish = InboundPublish(topic.encode(), sent.payload, sent.qos, sent.retain, expiry_s=expiry_s)
            if order.dry_run:
                self._routes.with_route(publish.topic, partial(self._count_destinations, open_order, topic))
            else:
                if sent.retain and not sent.payload:
                    self._node.journal.note("purge", "operator", "", topic, detail=f"by {order.actor}")
                item = _OrderedMessage(self._sending, publish, messages=self, order=open_order)
                self._routes.with_route(publish.topic, item.routed)

    def done(self, order: _OpenOrder, topic: str, reason_code: int) -> None:
        """Record the outcome of one message."""
        if topic not in order.remaining:
            return
        if reason_code >= FAILURE:
            order.errors.append(f"{topic[:100]}: reason code 0x{reason_code:02x}")
        else:
            order.sent += 1
        self._complete_topic(order, topic)

    def _count_destinations(self, order: _OpenOrder, topic: str, route: Route) -> None:
        """Count the destinations of a message in a dry run: local subscribers, other edges, partitions, groups."""
        counts = (len(route.subs or ()), len(route.edges), len(route.partitions), len(route.groups))
        named = zip(("subscribers here", "other edges", "partitions", "groups"), counts, strict=True)
        order.lines.append(f"{topic[:200]}: " + ", ".join(f"{count} {name}" for name, count in named))
        self._complete_topic(order, topic)

    def _complete_topic(self, order: _OpenOrder, topic: str) -> None:
        order.remaining.discard(topic)
        if order.remaining or order not in self._open:
            return
        self._open.remove(order)
        error = "; ".join(order.errors[:ERRORS_REPORTED_MAX])
        self._node.tell(order.router, NodeOrdered(order.request, order.sent, order.lines, error))

    def _find_error(self, verb: str, sent: SendOrder) -> str:
        """Return the reason to reject the whole order, "" if it is valid."""
        limits = self._node.limits
        for topic in sent.topics:
            try:
                validate_topic_name(topic, bytes_max=limits.topic_bytes_max, levels_max=limits.topic_levels_max)
            except MqttError as error:
                return f"topic {topic[:100]!r}: {error}"
            if topic.startswith("$"):
                return f"topic {topic[:100]!r}: what begins with $ is the nodes'"
        if sent.retain and not limits.retain_available:
            return "this cluster keeps no retained messages: edge.retain_available"
        if verb != RETAINED_CLEAR and sent.retain and not sent.payload:  # clearing requires another role
            return "an empty retained message takes one away: `retained clear`, which wants the role admin"
        return ""
