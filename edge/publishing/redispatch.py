"""Redispatch of copies that a durable member of a shared group left unacknowledged.

A partition orders it. The edge proposes a destination, the partition records it, and only then the edge sends. A pick
that refuses or died is replaced by one with a higher ``attempt``, which is recorded first. While no member has
capacity, the partition keeps the message and repeats the order later.
Source: MQTT 5.0 section 4.8.2; docs/adr/0016.
"""

from edge.loop.state import InboundPublish, Remote, Route
from edge.node.node import EdgeNode
from edge.node.ports import CorePublisher
from edge.publishing.order_answers import OrderAnswers
from edge.publishing.picking import Picking
from edge.routes.shared_groups import HERE, RecordedPick, SharedGroup
from edge.subscriptions.topic_routes import TopicRoutes
from mqtt.reasons import FAILURE
from wire.messages.batches import OriginKind
from wire.messages.redispatch import RedispatchOrder, RedispatchReply, handed_sender

__all__ = ["Redispatch", "Redispatching"]

ATTEMPTS_MAX = 64  # after so many refusals by destinations with members: they may not receive it
IN_FLIGHT_MAX = 8_192  # above it the edge refuses; the partition repeats the order later


class _Copy:
    """One message in redispatch."""

    __slots__ = ("awaits_record", "node", "order", "redispatching", "refused", "tried")

    def __init__(self, redispatching: "Redispatching", node: str, order: RedispatchOrder) -> None:
        self.redispatching = redispatching
        self.node = node
        self.order = order
        self.awaits_record = False  # the partition has not yet confirmed the proposed pick
        self.refused = False  # by the destination of the latest attempt
        self.tried: list[Remote | int] = []  # destinations that refused it

    def routed(self, route: Route) -> None:
        """Continue with the Route of the topic."""
        self.redispatching.routed(self, route)


class Redispatch(RecordedPick):
    """The recorded pick of a message that a partition ordered: a refusal is reported to that partition.

    Attributes:
        copy: The message.
    """

    def __init__(self, group: SharedGroup, choice: Remote | int, copy: _Copy) -> None:
        super().__init__(group, choice)
        self.copy = copy

    def refused(self) -> None:
        """Mark the copy as refused: the partition records the next destination before the edge sends there."""
        self.copy.refused = True

    def finished(self, reason_code: int) -> None:
        """Handle the outcome of the attempt."""
        self.copy.redispatching.finished(self, reason_code)


class Redispatching:
    """Redispatches messages of disconnected members.

    Args:
        node: This edge.
        loop: Publishes messages.
        routes: Finds the Route of a topic.
        picking: Selects destinations of groups.
        answers: Sends replies to partitions.
    """

    def __init__(
        self, node: EdgeNode, loop: CorePublisher, routes: TopicRoutes, picking: Picking, answers: OrderAnswers
    ) -> None:
        self._node = node
        self._loop = loop
        self._routes = routes
        self._picking = picking
        self._answers = answers
        self._copies: dict[tuple[int, int], _Copy] = {}  # by partition and number

    def order(self, node: str, order: RedispatchOrder) -> None:
        """Start an order of a partition; an order in progress continues."""
        key = (order.partition, order.number)
        copy = self._copies.get(key)
        if copy is None:
            if len(self._copies) >= IN_FLIGHT_MAX:
                self._node.count("redispatches_refused")
                self._answers.send(node, RedispatchReply(order.request, order.partition, order.number, None, True))
                return
            copy = self._copies[key] = _Copy(self, node, order)
        elif not copy.awaits_record:
            copy.node = node
            return
        copy.node, copy.order, copy.awaits_record = node, order, False
        self._routes.with_route(order.message.topic.encode(), copy.routed)

    def _is_current(self, copy: _Copy) -> bool:
        return self._copies.get((copy.order.partition, copy.order.number)) is copy

    def routed(self, copy: _Copy, route: Route) -> None:
        """Send a message to its recorded pick, or propose the next pick."""
        if not self._is_current(copy):
            return
        node, order = self._node, copy.order
        group = next((group for group in route.groups if group.share == order.share), None)
        if not isinstance(group, SharedGroup):
            node.count("shares_ended")
            self._end(copy)
            return
        pick = order.pick
        if pick is None:
            self._choose(copy, group, 0)
            return
        choice = group.from_record(pick, node.incarnation, node.peer_of(pick.edge))
        if choice == HERE and not self._picking.has_member(group.share, order.message.topic.encode()):
            if self._loop.knows_pick(group.share, _sender(order), order.number):
                self._end(copy)
                return
            choice = None
        if choice is None:
            self._choose(copy, group, pick.attempt + 1)
        else:
            self._send(copy, group, choice)

    def _choose(self, copy: _Copy, group: SharedGroup, attempt: int) -> None:
        """Propose the next destination to the partition; without one the partition repeats its order later."""
        node, order = self._node, copy.order
        topic = order.message.topic.encode()
        choice = self._picking.choose(group, topic, copy.tried)
        if choice is None:
            if self._picking.refuses(group.share, topic) or attempt >= ATTEMPTS_MAX:
                node.count("shares_not_authorized")
                node.journal.note("drop", "not_authorized", topic=order.message.topic, detail="of a group")
                self._end(copy)
                return
            node.count("handed_on_without_room")
            self._end(copy, again=True)
            return
        copy.awaits_record = True
        pick = group.to_record(choice, node.incarnation, attempt)
        self._answers.send(copy.node, RedispatchReply(order.request, order.partition, order.number, pick))

    def _send(self, copy: _Copy, group: SharedGroup, choice: Remote | int) -> None:
        order, message = copy.order, copy.order.message
        topic = message.topic.encode()
        publish = InboundPublish(
            topic, message.payload, message.qos, message.retain, message.properties, 5, message.expiry_s
        )  # fmt: skip
        sent = Redispatch(group, choice, copy)
        route = Route(topic, groups=(sent,))
        self._loop.publish(
            route, publish, -1, OriginKind.SESSION, _sender(order), order.number, sent.finished
        )  # fmt: skip

    def finished(self, sent: Redispatch, reason_code: int) -> None:
        """Handle the outcome of an attempt: select another destination after a refusal, else reply to the partition."""
        copy = sent.copy
        refused, copy.refused = copy.refused, False
        if not self._is_current(copy):
            return
        if refused:
            assert sent.choice is not None
            copy.tried.append(sent.choice)
            pick = copy.order.pick
            self._choose(copy, sent.group, pick.attempt + 1 if pick is not None else 0)
        elif reason_code >= FAILURE:
            self._end(copy, again=True)
        else:
            self._node.count("shares_redispatched")
            self._end(copy)

    def _end(self, copy: _Copy, *, again: bool = False) -> None:
        """Reply to an order; with ``again``, its partition repeats it later."""
        order = copy.order
        self._copies.pop((order.partition, order.number), None)
        self._answers.send(copy.node, RedispatchReply(order.request, order.partition, order.number, None, again))


def _sender(order: RedispatchOrder) -> int:
    return handed_sender(order.partition, order.hops)
