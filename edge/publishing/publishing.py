"""PUBLISH that needs a decision: route misses, retained messages, QoS 2 of durable publishers, wills.

What is recorded first is in ``edge/publishing/recording.py``; how a message goes everywhere, in
``edge/publishing/sending.py``.
Source: MQTT 5.0 sections 3.3, 4.3, 4.8.2; docs/protocol.md sections 4, 5, 7.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.hot.state import Conn, Inbound, Route
from edge.node.node import EdgeNode
from edge.node.ports import Publisher
from edge.publishing.recording import Recording
from edge.publishing.sending import Outgoing, Sending
from edge.rights.absent import AbsentUsers, Left
from edge.routes.publisher_names import name_publisher
from edge.subscriptions.topic_routes import TopicRoutes
from mqtt.errors import MqttError
from mqtt.reasons import ReasonCode
from mqtt.topics import is_reserved, validate_topic_name
from wire.messages.batches import OriginKind, encode_owner
from wire.messages.wills import FireWill, WillFired

__all__ = ["Publishing"]


@dataclass(slots=True, frozen=True)
class _Missed:
    """A publisher that waits for a topic's Route."""

    loop: Publisher
    conn: Conn

    def routed(self, _: Route) -> None:
        """Parse the packet again."""
        self.loop.resume(self.conn)


@dataclass(slots=True, kw_only=True)
class _Will(Outgoing):
    """A will that a partition ordered."""

    publishing: "Publishing"
    node: str
    order: FireWill

    @property
    def owner(self) -> bytes:
        """Whose will it was."""
        order, will = self.order, self.order.will
        return encode_owner(order.owner.encode(), order.owner_made, will.retained_max, will.retained_bytes_max)

    @property
    def on_done(self) -> Callable[[int], object]:
        """Return the taker of the outcome, for QoS 0 too."""
        return self.sent

    def finished(self, reason_code: int) -> bool:
        """Report it to its partition."""
        self.publishing.will_sent(self.node, self.order, reason_code)
        return False


@dataclass(slots=True, frozen=True)
class _Redispatched:
    """A group's copy whose member ended before it acknowledged."""

    publishing: "Publishing"
    share: bytes
    publish: Inbound

    def routed(self, route: Route) -> None:
        """Send it to another member."""
        self.publishing.redispatch_routed(self.share, self.publish, route)


class Publishing:
    """Publishes what the loop hands over.

    Args:
        node: This edge.
        loop: Where messages are published.
        clients: The connections.
        routes: Where topics go.
        sending: Sends a message everywhere.
        recording: Records QoS 2 of durable publishers before.
        may_fire_will: Whether one more will may go out in this second; its partition hands it over again if not.
        absent: Judges the users of wills.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: Publisher,
        clients: Clients,
        routes: TopicRoutes,
        sending: Sending,
        recording: Recording,
        may_fire_will: Callable[[], bool],
        absent: AbsentUsers,
    ) -> None:
        self._node = node
        self._loop = loop
        self._clients = clients
        self._routes = routes
        self._sending = sending
        self._recording = recording
        self._may_fire_will = may_fire_will
        self._absent = absent
        self._given_up: list[tuple[bytes, bytes, int]] = []  # group, record, since when
        self._wills: set[tuple[int, int, int]] = set()  # fan-outs under way: (partition, partition_epoch, op_index)

    # --- misses

    def miss(self, conn: Conn, topic: bytes) -> None:
        """Judge the name of a topic without a Route, ask for its destinations, resume the publisher."""
        name = topic.decode()
        limits = self._node.limits
        try:
            validate_topic_name(name, bytes_max=limits.topic_bytes_max, levels_max=limits.topic_levels_max)
        except MqttError as error:
            self._clients.error(conn, error.reason_code)
            return
        if is_reserved(name):  # a client is told so where it can be
            self._loop.install_route(topic, Route(topic, reason_code=ReasonCode.NOT_AUTHORIZED))
            self._loop.resume(conn)
            return
        self._routes.cache.need(name, _Missed(self._loop, conn).routed)
        if not self._routes.cache.gathers:
            self._node.wake_lightly()

    # --- handed over

    def inbound(self, conn: Conn, publish: Inbound, route: Route) -> None:
        """Take a retained PUBLISH, or QoS 2 of a durable session; ``miss`` has judged the topic of its Route."""
        client = conn.context
        assert isinstance(client, Client)
        if route.named:
            name_publisher(publish, client.client_id, client.owner)
        if publish.qos == 2 and client.session:
            self._recording.begin(client, publish, route)
        else:
            self._sending.send(Outgoing(self._sending, publish), route)

    # --- shared groups

    def redispatch(self, share: bytes, publish: Inbound) -> None:
        """Send a group's copy whose member ended before it acknowledged to another member, wherever that is.

        Its publisher has its acknowledgement: as the edge's own message, it has an origin of its own.
        """
        self._routes.local.note_redispatched(share)
        self._routes.with_route(publish.topic, _Redispatched(self, share, publish).routed)

    def given_up(self, share: bytes, record: bytes, since_ns: int) -> None:
        """Take a copy that waited for a member which may not receive it any more; of ``Handler``."""
        self._given_up.append((share, record, since_ns))
        self._node.wake()

    def step(self, now: float) -> None:
        """Send copies that were given up to other members."""
        del now
        if not self._given_up:
            return
        given_up, self._given_up = self._given_up, []
        for share, record, since_ns in given_up:
            publish = self._loop.read_given_up(record, since_ns)
            if publish is not None:
                self.redispatch(share, publish)

    def next_deadline(self) -> float:
        """Return 0 while copies are to be sent to other members."""
        return 0.0 if self._given_up else math.inf

    def redispatch_routed(self, share: bytes, publish: Inbound, route: Route) -> None:
        """Send it to the group alone, if there still is one."""
        groups = tuple(group for group in route.groups if group.share == share)
        if not groups:
            self._node.count("shares_ended")
            return
        self._node.count("shares_redispatched")
        self._loop.publish(Route(publish.topic, groups=groups), publish)

    # --- wills

    def fire_will(self, node: str, order: FireWill) -> None:
        """Fan a will out; its origin makes repeats harmless, here and at every destination."""
        if (order.partition, order.partition_epoch, order.op_index) in self._wills or not self._may_fire_will():
            return
        will = order.will
        left = Left(order.owner, order.owner_made, will.topic, will.qos, will.address, will.fingerprint)
        self._absent.judge_will(left, order.client_id, will.retain, partial(self._will_judged, node, order))

    def _will_judged(self, node: str, order: FireWill, allowed: bool) -> None:
        key = (order.partition, order.partition_epoch, order.op_index)
        if not allowed:
            self._node.count("refused_will_fired")
            self._node.journal.note("will", "not_authorized", order.client_id, order.will.topic)
            self._node.tell(node, WillFired(order.request, order.partition, order.op_index))
            return
        if key in self._wills:
            return
        self._wills.add(key)
        will = order.will
        publish = Inbound(will.topic.encode(), will.payload, will.qos, will.retain, will.properties, 5, will.expiry_s)
        if self._routes.named.has(will.topic):
            name_publisher(publish, order.client_id, order.owner)
        origin = (OriginKind.WILL, order.partition << 32 | order.partition_epoch, order.op_index)
        self._routes.need(
            will.topic, _Will(self._sending, publish, origin, publishing=self, node=node, order=order).routed
        )

    def will_sent(self, node: str, order: FireWill, reason_code: int) -> None:
        """Tell a partition that its will went out."""
        self._wills.discard((order.partition, order.partition_epoch, order.op_index))
        if reason_code == ReasonCode.SERVER_BUSY:
            self._node.count("wills_refused")  # a disk is full: its partition hands the will over again
            return
        self._node.tell(node, WillFired(order.request, order.partition, order.op_index))
