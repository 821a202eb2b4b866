"""PUBLISH beyond the fast path: route misses, retained messages, QoS 2 of durable publishers, wills.

``edge/publishing/recording.py`` records a message; ``edge/publishing/sending.py`` sends it to all destinations.
Source: MQTT 5.0 sections 3.3, 4.3, 4.8.2; docs/protocol.md sections 4, 5, 7.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from edge.clients.abuse_limits import AbuseLimits
from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.loop.state import InboundPublish, LoopConnection, Route
from edge.node.node import EdgeNode
from edge.node.ports import CorePublisher
from edge.publishing.order_answers import OrderAnswers
from edge.publishing.recording import Recording
from edge.publishing.sending import MessageSender, OutgoingMessage
from edge.rights.absent import AbsentClientMessage, AbsentUserChecks
from edge.routes.publisher_names import name_publisher, remove_names
from edge.subscriptions.topic_routes import TopicRoutes
from mqtt.errors import MqttError
from mqtt.reasons import ReasonCode
from mqtt.topics import is_reserved, validate_topic_name
from wire.messages.batches import OriginKind, encode_owner
from wire.messages.wills import WILL_SHARES_MAX, FireWill, WillFired

__all__ = ["EdgePublishing"]

WILLS_MAX = 65_536  # in flight; above this number, or these bytes of payloads, an edge refuses a will temporarily
WILLS_BYTES_MAX = 64 * 1024 * 1024
AUTHORIZATION_TIMEOUT_S = 5.0  # timeout of a router's reply about the user of a will


@dataclass(slots=True, frozen=True)
class _ParkedPublisher:
    """A parked publisher that needs a topic's Route."""

    loop: CorePublisher
    conn: LoopConnection

    def routed(self, _: Route) -> None:
        """Parse the packet again."""
        self.loop.resume(self.conn)


@dataclass(slots=True, kw_only=True)
class _Will(OutgoingMessage):
    """A will that a partition ordered.

    Attributes:
        node: The primary that ordered it last.
        authorized: Its user may publish it.
        shares: Groups for which the partition delivers the copies; another edge may select other members.
    """

    publishing: "EdgePublishing"
    node: str
    order: FireWill
    authorized: bool = False
    shares: list[bytes] = field(default_factory=list)

    def routed(self, route: Route) -> None:
        """Send it to all destinations except shared groups."""
        self.publish.traced = self.publish.traced or route.traced
        self.sending.send(self, self._without_groups(route))

    def routed_to_others(self, route: Route) -> None:
        """Send it to all destinations except shared groups and its retained partition."""
        self.sending.send_to_others(self, self._without_groups(route))

    def _without_groups(self, route: Route) -> Route:
        groups = route.groups
        self.shares = [group.share for group in groups[:WILL_SHARES_MAX]]
        others = route.subs, route.edges, route.partitions, groups[WILL_SHARES_MAX:]
        return Route(route.topic, *others, route.reason_code, route.audience) if groups else route

    @property
    def owner(self) -> bytes:
        """The user of the will, as a record encodes it."""
        order, will = self.order, self.order.will
        return encode_owner(order.owner.encode(), order.owner_made, will.retained_max, will.retained_bytes_max)

    @property
    def on_done(self) -> Callable[[int], object]:
        """Return the completion callback, for QoS 0 too."""
        return self.sent

    def finished(self, reason_code: int) -> bool:
        """Report the outcome to its partition."""
        self.publishing.will_sent(self, reason_code)
        return False


@dataclass(slots=True, frozen=True)
class _Redispatched:
    """A group's copy whose member disconnected before it acknowledged."""

    publishing: "EdgePublishing"
    share: bytes
    publish: InboundPublish

    def routed(self, route: Route) -> None:
        """Send it to another member."""
        self.publishing.redispatch_routed(self.share, self.publish, route)


class EdgePublishing:
    """Publishes messages that the loop delegates.

    Args:
        node: This edge.
        loop: Publishes messages.
        clients: The connections.
        routes: Finds the Route of a topic.
        sending: Sends a message to all destinations.
        recording: Records QoS 2 of durable publishers first.
        conduct: Limits the rate of wills.
        absent: Authorizes the users of wills.
        answers: Sends replies to partitions.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: CorePublisher,
        clients: Clients,
        routes: TopicRoutes,
        sending: MessageSender,
        recording: Recording,
        conduct: AbuseLimits,
        absent: AbsentUserChecks,
        answers: OrderAnswers,
    ) -> None:
        self._node = node
        self._loop = loop
        self._clients = clients
        self._routes = routes
        self._sending = sending
        self._recording = recording
        self._conduct = conduct
        self._absent = absent
        self._answers = answers
        self._given_up: list[tuple[bytes, bytes, int]] = []  # group, record, timestamp
        self._wills: dict[tuple[int, int], _Will] = {}  # in flight, by partition and number
        self._will_bytes = 0
        self._deferred: deque[_Will] = deque()  # those above the rate
        self._authorizing: deque[tuple[float, _Will]] = deque()  # those awaiting a router, with the deadline

    # --- misses

    def miss(self, conn: LoopConnection, topic: bytes) -> None:
        """Validate the name of a topic without a Route, request its destinations, then resume the publisher."""
        name = topic.decode()
        limits = self._node.limits
        try:
            validate_topic_name(name, bytes_max=limits.topic_bytes_max, levels_max=limits.topic_levels_max)
        except MqttError as error:
            self._clients.error(conn, error.reason_code)
            return
        if is_reserved(name):  # a v5 client receives the reason code
            self._loop.install_route(topic, Route(topic, reason_code=ReasonCode.NOT_AUTHORIZED))
            self._loop.resume(conn)
            return
        self._routes.cache.need(name, _ParkedPublisher(self._loop, conn).routed)
        if not self._routes.cache.is_batching:
            self._node.wake_lightly()

    def prefetch(self, conn: LoopConnection, topics: list[bytes]) -> int:
        """Request Routes of topics behind a missed one, up to the first invalid topic; return their number."""
        del conn
        limits, cache = self._node.limits, self._routes.cache
        for taken, topic in enumerate(topics):
            name = topic.decode()
            try:
                validate_topic_name(name, bytes_max=limits.topic_bytes_max, levels_max=limits.topic_levels_max)
            except MqttError:
                return taken
            if not is_reserved(name) and not cache.prefetch(name):
                return taken
        return len(topics)

    # --- delegated by the loop

    def inbound(self, conn: LoopConnection, publish: InboundPublish, route: Route) -> None:
        """Handle a retained PUBLISH, or QoS 2 of a durable session; ``miss`` has validated the topic."""
        client = conn.context
        assert isinstance(client, Client)
        if route.named:
            name_publisher(publish, client.client_id, client.owner)
        else:
            remove_names(publish)
        if publish.qos == 2 and client.session:
            self._recording.begin(client, publish, route)
        else:
            self._sending.send(OutgoingMessage(self._sending, publish), route)

    # --- shared groups

    def redispatch(self, share: bytes, publish: InboundPublish) -> None:
        """Send a group's copy to another member, at any node, after its member disconnected without an acknowledgement.

        Its publisher already has its acknowledgement. So the copy gets its own origin, like a message of the edge.
        """
        self._routes.local.note_redispatched(share)
        self._routes.with_route(publish.topic, _Redispatched(self, share, publish).routed)

    def given_up(self, share: bytes, record: bytes, since_ns: int) -> None:
        """Queue a copy for redispatch: its member may no longer receive it. Called by ``Handler``."""
        self._given_up.append((share, record, since_ns))
        self._node.wake()

    def step(self, now: float) -> None:
        """Redispatch queued copies, and send deferred wills."""
        self._answers.step(now)
        while self._authorizing and (self._authorizing[0][0] <= now or self._authorizing[0][1].authorized):
            _, will = self._authorizing.popleft()
            if not will.authorized and self._is_current(will):  # no router reported its user in time
                self._end_will(will, again=True)
        while self._deferred and self._conduct.may_fire_will():
            self._authorize_will(self._deferred.popleft())
        if not self._given_up:
            return
        given_up, self._given_up = self._given_up, []
        for share, record, since_ns in given_up:
            publish = self._loop.read_given_up(record, since_ns)
            if publish is not None:
                self.redispatch(share, publish)

    def next_deadline(self) -> float:
        """Return when ``step`` must run; 0 while copies await redispatch."""
        if self._given_up:
            return 0.0
        due = min(self._answers.next_deadline(), self._authorizing[0][0] if self._authorizing else math.inf)
        return min(due, self._conduct.will_at()) if self._deferred else due

    def redispatch_routed(self, share: bytes, publish: InboundPublish, route: Route) -> None:
        """Send a message to the group alone, if it still exists."""
        groups = tuple(group for group in route.groups if group.share == share)
        if not groups:
            self._node.count("shares_ended")
            return
        self._node.count("shares_redispatched")
        self._loop.publish(Route(publish.topic, groups=groups), publish)

    # --- wills

    def fire_will(self, node: str, order: FireWill) -> None:
        """Publish a will, or defer it above the rate; destinations detect repeats by its origin.

        If the will is already in flight, the reply goes to the primary that ordered it last.
        """
        key = (order.partition, order.number)
        known = self._wills.get(key)
        if known is not None:
            known.node = node
            return
        will = order.will
        if len(self._wills) >= WILLS_MAX or self._will_bytes + len(will.payload) > WILLS_BYTES_MAX:
            self._node.count("wills_refused")
            self._answers.send(node, WillFired(order.request, order.partition, order.number, True))
            return
        publish = InboundPublish(
            will.topic.encode(), will.payload, will.qos, will.retain, will.properties, 5, will.expiry_s
        )
        origin = (OriginKind.WILL, order.partition << 32 | order.partition_epoch, order.number)
        ordered = _Will(self._sending, publish, origin, publishing=self, node=node, order=order)
        self._wills[key] = ordered
        self._will_bytes += len(will.payload)
        if not self._deferred and self._conduct.may_fire_will():
            self._authorize_will(ordered)
        else:
            self._node.count("wills_deferred")
            self._deferred.append(ordered)
            self._node.wake()

    def _authorize_will(self, ordered: _Will) -> None:
        order, will = ordered.order, ordered.order.will
        left = AbsentClientMessage(order.owner, order.owner_made, will.topic, will.qos, will.address, will.fingerprint)
        authorized = partial(self._on_will_authorized, ordered)
        if not self._absent.judge_will(left, order.client_id, will.retain, authorized):
            self._end_will(ordered, again=True)
        elif not ordered.authorized and self._is_current(ordered):
            self._authorizing.append((self._node.now + AUTHORIZATION_TIMEOUT_S, ordered))

    def _is_current(self, ordered: _Will) -> bool:
        return self._wills.get((ordered.order.partition, ordered.order.number)) is ordered

    def _on_will_authorized(self, ordered: _Will, allowed: bool) -> None:
        if not self._is_current(ordered):
            return
        order, will = ordered.order, ordered.order.will
        ordered.authorized = True
        if not allowed:
            self._node.count("refused_will_fired")
            self._node.journal.note("will", "not_authorized", order.client_id, will.topic)
            self._end_will(ordered)
            return
        if self._routes.named.has(will.topic):
            name_publisher(ordered.publish, order.client_id, order.owner)
        else:
            remove_names(ordered.publish)
        self._routes.need(will.topic, ordered.routed)

    def will_sent(self, ordered: _Will, reason_code: int) -> None:
        """Reply to an order after the will was sent, or after a destination with a full disk refused it."""
        is_refused = reason_code == ReasonCode.SERVER_BUSY
        if is_refused:
            self._node.count("wills_refused")
        self._end_will(ordered, again=is_refused)

    def _end_will(self, ordered: _Will, *, again: bool = False) -> None:
        """Reply to an order; with ``again``, its partition repeats it later."""
        order = ordered.order
        del self._wills[order.partition, order.number]
        self._will_bytes -= len(order.will.payload)
        answer = WillFired(order.request, order.partition, order.number, again)
        if not again and ordered.shares:
            answer.shares, answer.properties = ordered.shares, ordered.publish.properties
        self._answers.send(ordered.node, answer)
