"""PUBLISH that needs a decision: route misses, retained messages, QoS 2 of durable publishers, wills.

QoS 2 of a durable session: its packet identifier is recorded at the session's partition before any fan-out, and the
origin that the partition gave travels with the message, so that a repeat through any edge is known. A retained message
has one destination more, the partition that holds the topic's register. Source: MQTT 5.0 sections 3.3, 4.3; ADR 4.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from edge.client import Client
from edge.hot.state import Conn, Inbound, Route
from edge.partition_requests import RequestsFull
from mqtt.errors import MqttError
from mqtt.reasons import ReasonCode
from mqtt.topics import validate_topic_name
from wire.batches import OriginKind
from wire.messages import (
    Control,
    FireWill,
    InboundRecorded,
    InboundReleased,
    RecordInbound,
    ReleaseInbound,
    WillFired,
)

if TYPE_CHECKING:
    from edge.core import EdgeCore

__all__ = ["PublishDesk", "is_reserved"]


def is_reserved(topic: str) -> bool:
    """Whether clients may not publish to a topic: $SYS is ours to write, $share names subscriptions (section 4.8.2).

    The state that bridges of other brokers announce about themselves is theirs: $SYS/broker/connection/<name>/state.
    """
    if not topic.startswith("$"):
        return False
    if topic.startswith("$SYS/broker/connection/") and topic.endswith("/state"):
        return topic.count("/") != 4
    return topic.startswith(("$SYS", "$share/"))


class PublishDesk:
    """Publishes what the loop hands over."""

    def __init__(self, edge: "EdgeCore") -> None:
        self._edge = edge
        self._wills: set[tuple[int, int, int]] = set()  # fan-outs under way: (partition, partition_epoch, op_index)

    # --- misses

    def miss(self, conn: Conn, topic: bytes) -> None:
        """A topic without a Route: judge its name, ask for its destinations, resume the publisher."""
        edge = self._edge
        name = topic.decode()
        limits = edge.limits
        try:
            validate_topic_name(name, bytes_max=limits.topic_bytes_max, levels_max=limits.topic_levels_max)
        except MqttError as error:
            edge.error(conn, error.reason_code)
            return
        if is_reserved(name):  # a client is told so where it can be
            edge.hot.install_route(topic, Route(topic, reason_code=ReasonCode.NOT_AUTHORIZED))
            edge.hot.resume(conn)
            return
        edge.cache.need(name, lambda _: edge.hot.resume(conn))

    # --- handed over

    def inbound(self, conn: Conn, publish: Inbound) -> None:
        """A retained PUBLISH, or QoS 2 of a durable session."""
        name = publish.topic.decode()
        limits = self._edge.limits
        try:
            validate_topic_name(name, bytes_max=limits.topic_bytes_max, levels_max=limits.topic_levels_max)
        except MqttError as error:
            self._edge.error(conn, error.reason_code)
            return
        if is_reserved(name):
            self._edge.hot.acknowledge(publish, ReasonCode.NOT_AUTHORIZED)
            self._edge.hot.resume(conn)
            return
        client = conn.owner
        assert isinstance(client, Client)
        if publish.qos == 2 and client.session:
            self._record(client, publish)
        else:
            self._publish(conn, publish, OriginKind.EDGE, 0, 0)

    def _record(self, client: Client, publish: Inbound) -> None:
        edge = self._edge
        request = RecordInbound(
            edge.requests.next_number(),
            client.partition,
            0,
            client.session,
            client.owner_epoch,
            publish.packet_identifier,
        )

        def recorded(answer: Control) -> None:
            if client.conn.closed or not isinstance(answer, InboundRecorded):
                return
            if answer.reason_code:
                edge.error(client.conn, answer.reason_code)
                return
            self._publish(client.conn, publish, OriginKind.SESSION, client.session, answer.counter)

        try:
            edge.requests.ask(request, recorded, edge.now)
        except RequestsFull:
            edge.error(client.conn, ReasonCode.SERVER_BUSY)

    def _publish(self, conn: Conn, publish: Inbound, kind: int, origin_a: int, origin_b: int) -> None:
        name = publish.topic.decode()
        self._edge.cache.need(name, partial(self._routed, conn, publish, kind, origin_a, origin_b))

    def _routed(self, conn: Conn, publish: Inbound, kind: int, origin_a: int, origin_b: int, route: Route) -> None:
        edge = self._edge
        if conn.closed:
            return
        name = publish.topic.decode()
        register = edge.map.partition_for(name) if publish.retain else -1
        if publish.retain and publish.qos:
            edge.cache.retained_started(name)
        client = conn.owner
        assert isinstance(client, Client)

        def done(reason_code: int) -> None:
            if publish.retain and publish.qos:
                edge.cache.retained_finished(name)
            if reason_code >= 0x80 and kind == OriginKind.SESSION:
                # A failing PUBREC frees the identifier at the client: its record goes first in the partition's order.
                self._release(client, publish.packet_identifier, lambda _: None)

        edge.hot.publish(route, publish, register, kind, origin_a, origin_b, done if publish.qos else None)
        edge.hot.resume(conn)

    # --- PUBREL

    def pubrel(self, conn: Conn, packet_identifier: int) -> None:
        """PUBREL of a durable session: PUBCOMP when the record is durably gone; unknown ones too [MQTT-4.3.3-11]."""
        client = conn.owner
        assert isinstance(client, Client)

        def released(answer: Control) -> None:
            if isinstance(answer, InboundReleased) and not conn.closed:
                # Unknown is no error: a client that missed our PUBCOMP repeats its PUBREL (section 3.7.2.1).
                self._edge.hot.released(conn, packet_identifier, 0)

        self._release(client, packet_identifier, released)

    def _release(self, client: Client, packet_identifier: int, then: Callable[[Control], None]) -> None:
        edge = self._edge
        request = ReleaseInbound(
            edge.requests.next_number(), client.partition, 0, client.session, client.owner_epoch, packet_identifier
        )
        try:
            edge.requests.ask(request, then, edge.now)
        except RequestsFull:
            edge.error(client.conn, ReasonCode.SERVER_BUSY)

    # --- wills

    def fire_will(self, node: str, order: FireWill) -> None:
        """Fan a will out; its origin makes repeats harmless, here and at every destination."""
        edge = self._edge
        name = (order.partition, order.partition_epoch, order.op_index)
        if name in self._wills:
            return
        self._wills.add(name)
        will = order.will
        publish = Inbound(will.topic.encode(), will.payload, will.qos, will.retain, will.properties, 5, will.expiry_s)

        def done(_: int) -> None:
            self._wills.discard(name)
            edge.tell(node, WillFired(order.request, order.partition, order.op_index))

        def routed(route: Route) -> None:
            register = edge.map.partition_for(will.topic) if will.retain else -1
            origin = order.partition << 32 | order.partition_epoch
            edge.hot.publish(route, publish, register, OriginKind.WILL, origin, order.op_index, done)

        edge.cache.need(will.topic, routed)
