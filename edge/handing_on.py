"""Copies that a durable member of a shared group left unacknowledged: find another member, and send them there.

A partition hands the message over. Where it goes is said to the partition first, which records it; the answer names the
recorded pick, and only then anything is sent. A pick that refuses, or was an edge that died, is replaced by one with a
higher ``attempt``, recorded again. While nobody has room the partition keeps the message and asks later.
Source: MQTT 5.0 section 4.8.2; docs/adr/0016.
"""

from functools import partial
from typing import TYPE_CHECKING

from edge.hot.state import Inbound, Message, Remote, Route
from edge.shared_groups import HERE, SharedGroup
from wire.batches import OriginKind
from wire.messages import HandedOn, HandOn

if TYPE_CHECKING:
    from edge.core import EdgeCore

__all__ = ["HandOnDesk"]

UNDER_WAY_MAX = 8_192  # the oldest is forgotten; its partition hands it over again
NO_SESSION = (1 << 48) - 1  # with the partition's number: the sender of what it hands on, no session's number


class _Copy:
    """One message under way."""

    __slots__ = ("asked", "node", "order", "refused", "tried")

    def __init__(self, node: str, order: HandOn) -> None:
        self.node = node
        self.order = order
        self.asked = False  # the partition was told where it would go, and has not said that it is recorded
        self.refused = False  # by the destination that it was sent to last
        self.tried: list[Remote | int] = []  # destinations that refused it


class HandOnDesk:
    """Hands messages of ended members on."""

    def __init__(self, edge: "EdgeCore") -> None:
        self._edge = edge
        self._copies: dict[tuple[int, int], _Copy] = {}  # by partition and number
        self._by_tag: dict[int, _Copy] = {}  # sent, and not done
        self._sending: _Copy | None = None

    def order(self, node: str, order: HandOn) -> None:
        """Take an order of a partition; one that is under way goes on."""
        key = (order.partition, order.number)
        copy = self._copies.get(key)
        if copy is None:
            if len(self._copies) >= UNDER_WAY_MAX:
                self._edge.count("handed_on_forgotten")
                del self._copies[next(iter(self._copies))]
            copy = self._copies[key] = _Copy(node, order)
        elif not copy.asked:
            copy.node = node
            return
        copy.node, copy.order, copy.asked = node, order, False
        self._edge.publishing.with_route(order.message.topic, partial(self._routed, copy))

    def _is_current(self, copy: _Copy) -> bool:
        return self._copies.get((copy.order.partition, copy.order.number)) is copy

    def _routed(self, copy: _Copy, route: Route) -> None:
        if not self._is_current(copy):
            return
        edge, order = self._edge, copy.order
        group = next((group for group in route.groups if group.share == order.share), None)
        if not isinstance(group, SharedGroup):
            edge.count("shares_ended")
            self._done(copy)
            return
        pick = order.pick
        if pick is None:
            self._choose(copy, group, 0)
            return
        choice = group.read(pick, edge.incarnation, edge.peers.get(pick.edge))
        if choice == HERE and not edge.ephemeral.has_member(group.share):
            if edge.hot.knows_pick(group.share, _sender(order), order.number):
                self._done(copy)
                return
            choice = None
        if choice is None:
            self._choose(copy, group, pick.attempt + 1)
        else:
            self._send(copy, group, choice)

    def _choose(self, copy: _Copy, group: SharedGroup, attempt: int) -> None:
        """Ask the partition to record the next destination; without one it asks again later."""
        edge, order = self._edge, copy.order
        choice = edge.choose(group, order.message.topic.encode(), copy.tried)
        if choice is None:
            edge.count("handed_on_without_room")
            self._forget(copy)
            return
        copy.asked = True
        pick = group.written(choice, edge.incarnation, attempt)
        edge.tell(copy.node, HandedOn(order.request, order.partition, order.number, pick))

    def _send(self, copy: _Copy, group: SharedGroup, choice: Remote | int) -> None:
        edge, order, message = self._edge, copy.order, copy.order.message
        topic = message.topic.encode()
        publish = Inbound(
            topic, message.payload, message.qos, message.retain, message.properties, 5, message.expiry_s
        )  # fmt: skip
        over = False

        def finished(reason_code: int) -> None:
            nonlocal over
            over = True
            self._by_tag.pop(tag, None)
            refused, copy.refused = copy.refused, False
            if not self._is_current(copy):
                return
            if refused:
                copy.tried.append(choice)
                self._choose(copy, group, order.pick.attempt + 1 if order.pick is not None else 0)
            elif reason_code >= 0x80:
                self._forget(copy)
            else:
                edge.count("shares_redispatched")
                self._done(copy)

        tag = 0
        self._sending = copy
        edge.publishing.recorded = {group.share: choice}
        route = Route(topic, groups=(group,))
        tag = edge.hot.publish(
            route, publish, -1, OriginKind.SESSION, _sender(order), order.number, finished
        )  # fmt: skip
        edge.publishing.recorded = None
        self._sending = None
        if not over:
            self._by_tag[tag] = copy

    def refused(self, message: Message) -> bool:
        """Whether a refused copy is one of these: its partition records the next pick before it is sent there."""
        whole = message.parent
        copy = self._sending
        if copy is None and whole is not None:
            copy = self._by_tag.get(whole.tag)
        if copy is None:
            return False
        copy.refused = True
        return True

    def _done(self, copy: _Copy) -> None:
        order = copy.order
        self._forget(copy)
        self._edge.tell(copy.node, HandedOn(order.request, order.partition, order.number))

    def _forget(self, copy: _Copy) -> None:
        self._copies.pop((copy.order.partition, copy.order.number), None)


def _sender(order: HandOn) -> int:
    return order.partition << 48 | NO_SESSION
