"""PUBLISH that needs a decision: route misses, retained messages, QoS 2 of durable publishers, wills.

QoS 2 of a durable session: its packet identifier is recorded at the session's partition before any fan-out, and the
origin that the partition gave travels with the message, so that a repeat through any edge is known. Where its copies
for shared groups go is recorded with it, and sent to again instead of picking anew. A retained message goes to the
partition that holds the topic's register, and to everybody else when it stands there: who has a value live finds no
older one any more. Source: MQTT 5.0 sections 3.3, 4.3; docs/protocol.md sections 4, 5, 7.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from edge.client import Client
from edge.hot.state import Conn, Inbound, Message, Remote, Route
from edge.partition_requests import RequestsFull
from edge.shared_groups import HERE, SharedGroup
from mqtt.errors import MqttError
from mqtt.reasons import ReasonCode
from mqtt.topics import is_reserved, validate_topic_name
from wire.batches import OriginKind
from wire.messages import (
    Control,
    FireWill,
    InboundRecorded,
    InboundReleased,
    RecordInbound,
    ReleaseInbound,
    SharePick,
    WillFired,
)

if TYPE_CHECKING:
    from edge.core import EdgeCore

__all__ = ["PublishDesk"]


class PublishDesk:
    """Publishes what the loop hands over."""

    def __init__(self, edge: "EdgeCore") -> None:
        self._edge = edge
        # Where the copies of the message at hand go, by share, as recorded; None: nothing is, pick as you like.
        self.recorded: dict[bytes, Remote | int | None] | None = None
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

    def with_route(self, name: str, then: Callable[[Route], None]) -> None:
        """Call with the topic's Route; the one in use, whose shared groups know whose turn it is, if there is one."""
        route = self._edge.hot.route(name.encode())
        if route is not None:
            then(route)
        else:
            self._edge.cache.need(name, then)

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
        self.with_route(publish.topic.decode(), partial(self._record_routed, client, publish, -1, {}))

    def _record_routed(
        self, client: Client, publish: Inbound, counter: int, known: dict[bytes, SharePick], route: Route
    ) -> None:
        """Record the identifier, and a pick for every group of the route that has none; then send the message."""
        edge = self._edge
        if client.conn.closed:
            return
        destinations: dict[bytes, Remote | int | None] = {}
        picks = []
        for group in route.groups:
            assert isinstance(group, SharedGroup)
            pick = known.get(group.share)
            if pick is not None and counter >= 0:
                choice = self._destination(client, group, pick, counter)
                if choice is not None:
                    destinations[group.share] = choice
                    continue
            choice = edge.choose(group, publish.topic)
            if choice is not None:
                picks.append(group.written(choice, edge.incarnation, 0 if pick is None else pick.attempt + 1))

        def recorded(answer: Control) -> None:
            if client.conn.closed or not isinstance(answer, InboundRecorded):
                return
            if answer.reason_code:
                edge.error(client.conn, answer.reason_code)
                return
            now_known = {pick.share: pick for pick in answer.picks}
            name = publish.topic.decode()
            self.with_route(name, partial(self._record_routed, client, publish, answer.counter, now_known))

        if counter < 0 or picks:
            self._ask_to_record(client, publish.packet_identifier, picks, recorded)
            return
        self._routed(client.conn, publish, OriginKind.SESSION, client.session, counter, route, destinations)

    def _destination(self, client: Client, group: SharedGroup, pick: SharePick, counter: int) -> Remote | int | None:
        """Return where a recorded pick can still go, None if it has to be replaced."""
        edge = self._edge
        choice = group.read(pick, edge.incarnation, edge.peers.get(pick.edge))
        if choice == HERE and not edge.ephemeral.has_member(group.share):
            return HERE if edge.hot.knows_pick(group.share, client.session, counter) else None
        return choice

    def _ask_to_record(
        self, client: Client, packet_identifier: int, picks: list[SharePick], then: Callable[[Control], None]
    ) -> None:
        edge = self._edge
        request = RecordInbound(
            edge.requests.next_number(),
            client.partition,
            0,
            client.session,
            client.owner_epoch,
            packet_identifier,
            picks,
        )
        try:
            edge.requests.ask(request, then, edge.now)
        except RequestsFull:
            edge.error(client.conn, ReasonCode.SERVER_BUSY)

    def is_recorded(self, copy: Message) -> bool:
        """Whether a shared group's copy is one of a message whose picks are recorded."""
        whole = copy.parent
        return whole is not None and whole.conn is not None and whole.qos == 2 and whole.conn.session != 0

    def pick_again(self, copy: Message, group: SharedGroup) -> None:
        """A recorded pick refused, or was an edge that died: record another, then send there."""
        assert copy.pick is not None
        self._pick_again(copy, group, copy.pick.attempt + 1)

    def _pick_again(self, copy: Message, group: SharedGroup, attempt: int) -> None:
        edge, whole, tried = self._edge, copy.parent, copy.tried or []
        assert whole is not None and whole.conn is not None
        client = whole.conn.owner
        choice = edge.choose(group, b"", tried)
        if not isinstance(client, Client) or whole.conn.closed or choice is None:
            edge.hot.send_pick(copy, None)  # the publisher repeats it elsewhere, or there is nobody
            return
        pick = group.written(choice, edge.incarnation, attempt)

        def recorded(answer: Control) -> None:
            if whole.conn is None or whole.conn.closed:
                edge.hot.send_pick(copy, None)
                return
            if not isinstance(answer, InboundRecorded) or answer.reason_code:
                edge.error(whole.conn, getattr(answer, "reason_code", ReasonCode.UNSPECIFIED_ERROR))
                return
            now = group.read(pick, edge.incarnation, edge.peers.get(pick.edge))
            if now == HERE and edge.ephemeral.has_member(group.share):
                edge.hot.send_pick(copy, edge.ephemeral.pick(group.share))
            elif isinstance(now, Remote):
                edge.hot.send_pick(copy, now)
            else:
                copy.tried = [*tried, choice] if isinstance(choice, Remote) else tried
                self._pick_again(copy, group, attempt + 1)

        self._ask_to_record(client, whole.packet_identifier, [pick], recorded)

    def _publish(self, conn: Conn, publish: Inbound, kind: int, origin_a: int, origin_b: int) -> None:
        name = publish.topic.decode()
        self.with_route(name, partial(self._routed, conn, publish, kind, origin_a, origin_b))

    def _routed(
        self,
        conn: Conn,
        publish: Inbound,
        kind: int,
        origin_a: int,
        origin_b: int,
        route: Route,
        recorded: dict[bytes, Remote | int | None] | None = None,
    ) -> None:
        if conn.closed:
            return
        client = conn.owner
        assert isinstance(client, Client)

        def done(reason_code: int) -> bool:
            if reason_code < 0x80 or kind != OriginKind.SESSION or conn.closed:
                return False
            if publish.gated is not None and publish.gated.delivered:
                return False  # no answer either: the message comes again, and is the same one where it was taken

            def released(answer: Control) -> None:
                if isinstance(answer, InboundReleased):
                    self._edge.hot.acknowledge(publish, reason_code)

            # A failing PUBREC frees the identifier at the client, who never speaks of it again: its record goes first.
            self._release(client, publish.packet_identifier, released)
            return True

        self._send(publish, route, (kind, origin_a, origin_b), done if publish.qos else None, recorded)

    # --- retained

    def _send(
        self,
        publish: Inbound,
        route: Route,
        origin: tuple[int, int, int],
        done: Callable[[int], object] | None,
        recorded: dict[bytes, Remote | int | None] | None = None,
    ) -> None:
        """Send a message everywhere, and go on with its connection; QoS 1 and 2 to the topic's register first."""
        edge, name = self._edge, publish.topic.decode()
        register = edge.map.partition_for(name) if publish.retain else -1
        others = _others(route, register)
        if not publish.qos or done is None or register < 0 or others.empty:
            waited_for = register >= 0 and publish.qos > 0

            def finished(reason_code: int) -> object:
                if waited_for:
                    edge.cache.retained_finished(name)
                return done is not None and done(reason_code)

            if waited_for:
                edge.cache.retained_started(name)
            self.recorded = recorded
            edge.hot.publish(route, publish, register, *origin, finished if done is not None else None)
            self.recorded = None
            self._go_on(publish.conn)
            return
        self._to_register(publish, register, origin, done, recorded)

    def _to_register(
        self,
        publish: Inbound,
        register: int,
        origin: tuple[int, int, int],
        done: Callable[[int], object],
        recorded: dict[bytes, Remote | int | None] | None,
    ) -> None:
        """Write a message to its register and the queues beside it, then send it to everybody else.

        Meanwhile its connection waits, so that nothing overtakes it. What is refused reaches nobody.
        """
        edge, conn, name = self._edge, publish.conn, publish.topic.decode()
        tag = 0

        def stands(reason_code: int) -> None:
            edge.cache.retained_finished(name)
            if conn is not None and conn.closed and conn.session:
                return  # its client sends it again, and may have elsewhere, with newer ones behind it
            if reason_code == ReasonCode.SESSION_TAKEN_OVER and conn is not None:
                if not conn.closed:
                    edge.error(conn, reason_code)
            elif reason_code >= 0x80:
                untold = reason_code == ReasonCode.SERVER_BUSY and publish.version != 5
                if untold and conn is not None and not conn.closed:  # its record stays for when the message comes again
                    edge.error(conn, ReasonCode.QUOTA_EXCEEDED)
                if not done(reason_code):
                    edge.hot.acknowledge(publish, reason_code)
                self._go_on(conn)
            else:
                # Who subscribed meanwhile reads the register behind this write; who stopped holding back its live
                # messages no longer takes them where the Route of that time says.
                self.with_route(name, send)

        def send(route: Route) -> None:
            others = _others(route, register)
            if others.empty:
                code = 0 if route.partitions else ReasonCode.NO_MATCHING_SUBSCRIBERS
                edge.hot.acknowledge(publish, code)
                done(code)
            else:
                self.recorded = recorded
                edge.hot.publish(others, publish, -1, *origin, done, (tag, register))
                self.recorded = None
            self._go_on(conn)

        edge.cache.retained_started(name)
        copy = Inbound(
            publish.topic, publish.payload, publish.qos, True, publish.properties, publish.version, publish.expiry_s,
            conn=conn,
        )  # fmt: skip
        tag = edge.hot.publish(Route(publish.topic), copy, register, *origin, stands)

    def _go_on(self, conn: Conn | None) -> None:
        if conn is not None and not conn.closed:
            self._edge.hot.resume(conn)

    # --- shared groups

    def redispatch(self, share: bytes, publish: Inbound) -> None:
        """A group's copy whose member ended before it acknowledged goes to another member, wherever that is.

        Its publisher has its acknowledgement: as the edge's own message, it has an origin of its own.
        """
        edge = self._edge

        def routed(route: Route) -> None:
            groups = tuple(group for group in route.groups if group.share == share)
            if not groups:
                edge.count("shares_ended")
                return
            edge.count("shares_redispatched")
            edge.hot.publish(Route(publish.topic, groups=groups), publish)

        self.with_route(publish.topic.decode(), routed)

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

        def done(reason_code: int) -> None:
            self._wills.discard(name)
            if reason_code == ReasonCode.SERVER_BUSY:
                edge.count("wills_refused")  # a disk is full: its partition hands the will over again
                return
            edge.tell(node, WillFired(order.request, order.partition, order.op_index))

        def routed(route: Route) -> None:
            origin = order.partition << 32 | order.partition_epoch
            self._send(publish, route, (OriginKind.WILL, origin, order.op_index), done)

        edge.cache.need(will.topic, routed)


def _others(route: Route, register: int) -> Route:
    """Return where a message goes beside its register's partition, which finds the subscribers that it has itself."""
    partitions = tuple(number for number in route.partitions if number != register)
    return Route(route.topic, route.subs, route.edges, partitions, route.groups, route.reason_code)
