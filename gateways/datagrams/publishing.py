"""PUBLISH: authorized, distributed to every subscriber from here, and answered after all acknowledgements.

At QoS 0 the answer means that all was sent. At QoS 1 it waits for each QoS 1 subscriber, unless given up, and for the
cluster of an attached node. A repeated number is answered again and distributed once. No message is sent to another
node, except to one that relays for devices that only it can reach.
"""

from __future__ import annotations

from collections.abc import Hashable

from gateways.datagrams.deliveries import PendingDelivery
from gateways.datagrams.messages import Code, Datagram, DatagramPublish, PubAck, encode
from gateways.datagrams.node_context import NodeContext
from gateways.datagrams.node_events import Arrived, ClusterMessage, ClusterPublish
from gateways.datagrams.number_windows import NumberStatus, NumberWindows
from gateways.datagrams.subscribers import DatagramSubscription
from gateways.datagrams.subtrees import is_within

__all__ = ["DatagramPublishing"]

TOPIC_NUMBERS_MAX = 16_384
CLUSTER_WINDOW = 1_000  # messages that wait for the cluster
NUMBER_MAX = (1 << 63) - 1  # largest number in a packet
OTHER_BYTES_MAX = 64  # of a packet besides topic and payload


class DatagramPublishing:
    """The messages that one node distributes."""

    def __init__(self, parts: NodeContext) -> None:
        self._parts = parts
        self._windows = NumberWindows(parts.settings.publishers_max)
        self._numbers: dict[str, int] = {}  # topic numbers by topic
        self._topics: dict[int, str] = {}
        self._cluster: dict[int, PendingDelivery] = {}  # by token
        self._token = 0

    def topic_number(self, topic: str) -> int:
        """Return the number of a topic in this incarnation of the node, 0 if there is none left."""
        number = self._numbers.get(topic, 0)
        if not number and len(self._numbers) < TOPIC_NUMBERS_MAX:
            number = self._parts.settings.incarnation << 16 | len(self._numbers) + 1
            self._numbers[topic] = number
            self._topics[number] = topic
        return number

    def handle_publish(self, now: float, arrived: Arrived, message: DatagramPublish) -> None:
        """Handle a PUBLISH of a device, or of a node for which this one relays."""
        parts = self._parts
        topic = message.topic or self._topics.get(message.topic_number, "")
        if not topic:
            # A topic number of a former incarnation.
            parts.refuse(arrived, Code.BUSY if parts.is_waiting(now) else Code.NOT_MINE)
            return
        if message.topic != topic:
            message = DatagramPublish(topic, message.payload, message.qos, message.number)
        neighbour = parts.get_neighbour(arrived.peer)
        if neighbour:
            if neighbour != "parent" and is_within(topic, neighbour):
                self._take(now, arrived, message, parts.subscribers.matching(topic, relay_only=True), True)
            else:
                parts.refuse(arrived, Code.NOT_AUTHORIZED)
            return
        if topic.startswith("$") or not parts.rights.may_publish(arrived.name, topic, message.qos):
            parts.refuse(arrived, Code.NOT_AUTHORIZED)
        elif not is_within(topic, parts.settings.subtree) or not parts.holds(now):
            parts.redirect(now, arrived)
        elif (child := parts.jurisdiction.child_for(topic)) is not None:
            parts.refuse(arrived, Code.NOT_MINE, child.peer.endpoint)
        else:
            self._take(now, arrived, message, parts.subscribers.matching(topic), False)

    def _take(
        self,
        now: float,
        arrived: Arrived,
        message: DatagramPublish,
        subscribers: list[DatagramSubscription],
        is_relayed: bool,
    ) -> None:
        """Distribute a message, unless its number is a repeat, or a subscriber's queue is full."""
        parts, number = self._parts, message.number
        if not self._fits(message):
            parts.refuse(arrived, Code.TOO_LARGE)
            return
        publisher: Hashable = arrived.peer.session or arrived.peer.endpoint
        seen = self._windows.check(publisher, number) if number or message.qos else NumberStatus.NEW
        if seen is NumberStatus.UNDER_WAY:
            return
        if seen is NumberStatus.TOO_OLD:
            parts.refuse(arrived, Code.MALFORMED)
            return
        if seen is NumberStatus.ANSWERED:
            parts.counts["repeats_answered"] += 1
            answer = self._windows.answer(publisher, number)
            if answer is not None:
                parts.answer(arrived, answer)
            return
        goes_to_cluster = parts.settings.attached and not is_relayed
        if message.qos and (
            any(each.qos and parts.deliveries.is_full(each.peer.endpoint) for each in subscribers)
            or (goes_to_cluster and len(self._cluster) >= CLUSTER_WINDOW)
        ):
            self._windows.forget(publisher, number)
            parts.refuse(arrived, Code.BUSY)
            return
        parts.counts["messages_relayed" if is_relayed else "messages_received"] += 1
        waiting = PendingDelivery(arrived.peer, arrived.packet.request, number)
        waiting.open = 1
        self._distribute(now, message, subscribers, waiting)
        if goes_to_cluster:
            self._token += 1
            if message.qos:
                waiting.open += 1
                self._cluster[self._token] = waiting
            parts.out.publish.append(ClusterPublish(message.topic, message.payload, message.qos, self._token))
        self._release(waiting)

    def from_cluster(self, now: float, message: ClusterMessage) -> None:
        """Distribute a message of the cluster; topics of a child are left to the child."""
        parts = self._parts
        waiting = PendingDelivery(None, 0, 0, open=1, token=message.token)
        taken = DatagramPublish(message.topic, message.payload, message.qos)
        if not self._fits(taken):  # too large for any subscriber: none is waited for or given up
            parts.counts["messages_too_large"] += 1
        elif (
            is_within(message.topic, parts.settings.subtree)
            and parts.holds(now)
            and parts.jurisdiction.child_for(message.topic) is None
        ):
            parts.counts["messages_of_cluster"] += 1
            subscribers = parts.subscribers.matching(message.topic)
            self._distribute(now, taken, subscribers, waiting)
        self._release(waiting)

    def cluster_answered(self, token: int, refusal: Code | None) -> None:
        """Handle the cluster's answer; a refused message may be repeated."""
        waiting = self._cluster.pop(token, None)
        if waiting is None:
            return
        if refusal is None:
            self._release(waiting)
        elif waiting.peer is not None:
            self._windows.forget(waiting.peer.session or waiting.peer.endpoint, waiting.number)
            self._parts.counts[f"refused_{refusal.name.lower()}"] += 1
            self._parts.send(waiting.peer, Datagram(waiting.request, PubAck(refusal)))
            waiting.peer = None  # later answers of its subscribers have no effect

    def lost_cluster(self) -> None:
        """Answer all messages that wait for the cluster *busy*."""
        for token in list(self._cluster):
            self.cluster_answered(token, Code.BUSY)

    def answered(self, now: float, arrived: Arrived) -> None:
        """Handle a subscriber's answer."""
        parts = self._parts
        waiting, send = parts.deliveries.answered(now, arrived.peer.endpoint, arrived.packet.request)
        for peer, packet in send:
            parts.send(peer, packet)
        if waiting is not None and not waiting.open:
            self._finish(waiting)

    def repeat(self, now: float) -> None:
        """Retransmit unanswered messages; a subscriber that does not answer five tries is given up."""
        send, ended, silent_peers = self._parts.deliveries.repeat(now)
        self._parts.out.given_up += silent_peers
        for peer, packet in send:
            self._parts.send(peer, packet)
        for waiting in ended:
            if not waiting.open:
                self._finish(waiting)

    def _fits(self, message: DatagramPublish) -> bool:
        """Return whether a message, with its topic and any number, fits one datagram."""
        bytes_max, topic = self._parts.settings.packet_bytes_max, message.topic or ""
        if 4 * len(topic) + len(message.payload) + OTHER_BYTES_MAX <= bytes_max:
            return True
        packet = Datagram(NUMBER_MAX, DatagramPublish(topic, message.payload, message.qos, NUMBER_MAX))
        return len(encode(packet)) <= bytes_max

    def _distribute(
        self, now: float, message: DatagramPublish, subscribers: list[DatagramSubscription], waiting: PendingDelivery
    ) -> None:
        parts = self._parts
        for each in subscribers:
            packet = parts.deliveries.send(now, each.peer, message, min(each.qos, message.qos), waiting)
            if packet is not None:
                parts.counts["messages_sent"] += 1
                parts.send(each.peer, packet)

    def _release(self, waiting: PendingDelivery) -> None:
        waiting.open -= 1
        if not waiting.open:
            self._finish(waiting)

    def _finish(self, waiting: PendingDelivery) -> None:
        """Answer the source of a message."""
        if waiting.token >= 0:
            self._parts.out.done.append(waiting.token)
        elif waiting.peer is not None:
            answer = PubAck(Code.DISTRIBUTED, receivers=waiting.receivers)
            self._windows.store_answer(waiting.peer.session or waiting.peer.endpoint, waiting.number, answer)
            self._parts.send(waiting.peer, Datagram(waiting.request, answer))
            waiting.peer = None
