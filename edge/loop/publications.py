"""Routes, and messages that the edge core publishes, acknowledges or delivers itself.

Second base class of ``BrokerLoop`` (``edge/loop/broker_loop.py``). ``edge/loop/inbound.py`` handles messages without
the core.
"""

import itertools
from collections.abc import Callable

import cython

from edge.loop.connections import Connections
from edge.loop.picks import read_pick
from edge.loop.state import (
    InboundPublish,
    LoopConnection,
    LoopState,
    OutboundWindow,
    PendingAck,
    PublishView,
    Route,
    Sub,
)

if not cython.compiled:
    from edge.loop.acks import destination_done, new_message, return_quota
    from edge.loop.deliver import deliver_to
    from edge.loop.fanout import fan_out, redispatch
    from edge.loop.layout import NO_EXPIRY, NO_MATCHING_SUBSCRIBERS, QUOTA_EXCEEDED, SERVER_BUSY
    from edge.loop.notes import note_drop
    from edge.loop.origins import was_picked
    from edge.loop.outboxes import park_if_primary_full
    from edge.loop.output import note_high, pending_output, unpark, write_short
    from edge.loop.picks import take_unacked_picks
    from edge.loop.records import load_record, topic_of
    from edge.loop.refused_topics import ENDS, TAKES, check_refused
    from edge.loop.reported_origins import forget_origin
    from edge.loop.routes import known_route
    from edge.loop.state import PARK_QUOTA, RELEASE_PENDING

__all__ = ["PublishMethods"]


class PublishMethods(Connections):
    """Routes, and messages of the core."""

    def install_route(self, topic: bytes, route: Route) -> None:
        """Cache the Route of a topic; beyond ``routes_max`` the oldest entry is evicted."""
        if topic in self.routes:
            self.routes_version += 1  # connections cache their last Route
        elif len(self.routes) >= self.routes_max:
            del self.routes[next(iter(self.routes))]
            self.routes_version += 1
        route.generation = self.generation
        self.routes[topic] = route

    def route(self, topic: bytes) -> Route | None:
        """Return the cached Route if it is current."""
        return known_route(self, topic)

    def clear_used(self, topic: bytes) -> bool:
        """Clear the used mark of a Route; return whether it was set by a second message since the last call."""
        route: Route | None = self.routes.get(topic)
        if route is None or route.uses < 2:
            return False
        route.uses = 1
        return True

    def keep_route(self, route: Route) -> None:
        """Keep a Route as current, in ``Handler.refresh``."""
        route.generation = self.generation

    def replace_route(self, route: Route) -> None:
        """Replace the topic's Route, in ``Handler.refresh``."""
        route.generation = self.generation
        # No connection caches the former one: the change of generation cleared their last Routes.
        self.routes[route.topic] = route

    def drop_route(self, topic: bytes) -> None:
        """Remove a topic's Route and the local subscribers kept for forwarded messages. Unknown topics are ignored."""
        if self.routes.pop(topic, None) is not None:
            self.routes_version += 1
        self.local_routes.pop(topic, None)

    def drop_routes(self) -> None:
        """Remove the Routes of all topics."""
        self.routes.clear()
        self.local_routes.clear()
        self.routes_version += 1

    def drop_oldest_local(self, count: int) -> None:
        """Remove the local subscribers kept for the topics that were forwarded first."""
        for topic in list(itertools.islice(self.local_routes, count)):
            del self.local_routes[topic]

    def refresh_routes(self) -> None:
        """Have every Route checked before its next use, after subscriptions or peers changed."""
        self.generation += 1
        self.routes_version += 1

    def refresh_route(self, topic: bytes) -> None:
        """Have one topic's Route checked before its next use."""
        route: Route | None = self.routes.get(topic)
        if route is not None:
            route.generation = -1
        route = self.local_routes.get(topic)
        if route is not None:
            route.generation = -1
        self.routes_version += 1

    def publish(
        self,
        route: Route,
        publish: InboundPublish,
        retained_partition: int = -1,
        origin_kind: int = 0,
        origin_a: int = 0,
        origin_b: int = 0,
        on_done: Callable[[int], object] | None = None,
        written: tuple[int, int] | None = None,
        owner: bytes = b"",
    ) -> int:
        """Send a message to every destination of the route, like a parsed one.

        With ``publish.conn`` and QoS 1/2, PUBACK or PUBREC is written after all destinations have acknowledged, in the
        order of the ``Handler.inbound`` calls. ``on_done`` gets the final reason code (0, 0x10, or >= 0x80), at once
        without destinations that acknowledge.

        Args:
            route: The topic's route, from ``route`` or made for this call.
            publish: The message. ``retain`` goes to the partition below and to subscribers with retain_as_published.
            retained_partition: The partition that retains the message, -1 for none.
            origin_kind: OriginKind; EDGE gives (incarnation, tag) and ignores the other two.
            origin_a: Session number, or will partition << 32 | partition_epoch.
            origin_b: Inbound counter, or op_index.
            on_done: Called once; returns whether the acknowledgement waits for ``acknowledge``.
            written: (tag, partition) of this method's call for the retained copy of the same message.
            owner: The publisher's user, for the partition above alone: ``encode_owner`` of wire/messages/batches.py.

        Returns:
            Its tag, 0 for QoS 0.
        """
        message: PendingAck | None = publish.reserved_ack
        publish.reserved_ack = None
        if message is None and (publish.qos > 0 or on_done is not None):
            message = new_message(self, publish.qos, publish.conn, 0)
            message.waiting = 1
        elif message is not None:
            # It was numbered on arrival, and others were sent since: a partition treats a lower number as a repeat.
            self.tags += 1
            message.tag = self.tags
        packet: PublishView = self.load_inbound(publish)
        packet.origin_kind = origin_kind
        packet.origin_a = origin_a
        packet.origin_b = origin_b
        code: cython.int = route.reason_code
        if message is not None:
            message.on_done = on_done
            publish.reserved_ack = message
            message.delivered = written is not None
        if written is not None:
            self.origin_tag = written[0]  # one origin: it identifies a retained copy and its live twin
        if message is not None:
            message.origin_kind = origin_kind
            message.origin_a = origin_a
            message.origin_b = origin_b if origin_kind else self.origin_tag
        if code == 0 and message is not None and publish.qos > 0 and _refuse_if_behind(self, publish):
            code = SERVER_BUSY  # the same code as from the partition
        self.owner_block = owner
        if code == 0:
            fan_out(self, publish.conn, route, packet, message if publish.qos > 0 else None, retained_partition)
        self.origin_tag = 0
        self.owner_block = b""
        if retained_partition >= 0 and self.full_peers > 0 and publish.conn is not None:
            park_if_primary_full(self, publish.conn, retained_partition)
        if message is None:
            return 0
        tag: int = message.tag
        if written is not None:
            message.retained_partition = written[1]  # for the audit: both have the same origin
        if code == 0 and route.empty:
            code = NO_MATCHING_SUBSCRIBERS  # perhaps retained, but without subscribers
        destination_done(self, message, code)
        return tag

    def load_inbound(self, publish: InboundPublish) -> PublishView:
        """Load the core's message into ``packet``."""
        packet: PublishView = self.packet
        both: bytes = publish.properties + publish.payload
        packet.keep = both
        packet.data = both
        packet.version = 5 if publish.version == 5 else 4
        packet.qos = publish.qos
        packet.retain = publish.retain
        packet.dup = False
        packet.pending_key = -1
        packet.expiry_s = publish.expiry_s
        packet.alias_at = -1
        packet.expiry_at = -1
        packet.topic = publish.topic
        packet.properties_at = 0
        packet.properties_bytes = len(publish.properties)
        packet.plain_bytes = packet.properties_bytes
        packet.payload_at = packet.properties_bytes
        packet.payload_bytes = len(publish.payload)
        packet.packet_identifier = publish.packet_identifier
        packet.origin_kind = 0
        packet.origin_a = 0
        packet.traced = publish.traced
        packet.session = publish.conn.session if publish.conn is not None else 0
        packet.owner_epoch = publish.conn.owner_epoch if publish.conn is not None else 0
        return packet

    def acknowledge(self, publish: InboundPublish, reason_code: int) -> None:
        """Acknowledge a PUBLISH of ``Handler.inbound`` in order, for one that is not sent or was deferred."""
        message: PendingAck | None = publish.reserved_ack
        publish.reserved_ack = None
        if message is not None:
            destination_done(self, message, reason_code)

    def bears(self, publish: InboundPublish, origin_kind: int, origin_a: int, origin_b: int) -> None:
        """Set the origin of a message that is acknowledged without being published; arguments as of ``publish``."""
        message: PendingAck | None = publish.reserved_ack
        if message is not None:
            message.origin_kind = origin_kind
            message.origin_a = origin_a
            message.origin_b = origin_b

    def released(self, conn: LoopConnection, packet_identifier: int, reason_code: int) -> None:
        """Write PUBCOMP for a PUBREL of ``Handler.pubrel`` and return its quota."""
        if conn.closed:
            return
        write_short(self, conn, 0x70, packet_identifier, reason_code)
        conn.has_acks = True
        if conn.received is None or conn.received.get(packet_identifier) != RELEASE_PENDING:
            return  # received on an earlier connection, or PUBREL was repeated
        del conn.received[packet_identifier]
        if conn.origins is not None:
            forget_origin(conn, packet_identifier)
        if conn.version == 5:
            return_quota(self, conn)
        elif conn.parked & PARK_QUOTA:
            unpark(self, conn, PARK_QUOTA)  # perhaps parked on the next message with this identifier

    def deliver(self, conn: LoopConnection, publish: InboundPublish, qos: int, identifiers: bytes = b"") -> bool:
        """Deliver one message to one ephemeral session outside any route, like retained copies; RETAIN unchanged.

        Returns:
            False if it was dropped and counted.
        """
        if conn.closed:
            self.dropped_closed += 1
            note_drop(self, conn, "closed", publish.topic, None)
            return False
        delivered: bool = deliver_to(self, conn, self.load_inbound(publish), qos, publish.retain, identifiers)
        if pending_output(conn) > self.output_high:
            note_high(self, conn)
        return delivered

    def can_take(self, conn: LoopConnection, size: int, qos: int, live: bool = False) -> bool:
        """Return whether a message from a source that can wait is sent or queued without dropping another.

        Such messages fill up to half of the session's queue, and output only up to the low mark: the rest is for live
        messages.

        Args:
            conn: The receiver; a closed one accepts no message.
            size: Bytes of the message, at least.
            qos: Of the copy.
            live: A live message, which may use the whole limits.
        """
        outbound: OutboundWindow | None = conn.outbound
        parts: cython.Py_ssize_t = 1 if live else 2
        if conn.closed or conn.lagging or pending_output(conn) > (self.output_high if live else self.output_low):
            return False
        if qos == 0 or conn.session != 0 or outbound is None:
            return True
        waits: cython.Py_ssize_t = len(outbound.pending) if outbound.pending else 0
        if waits == 0 and outbound.inflight < outbound.window:
            return True
        fits: bool = (
            waits < self.pending_max // parts and outbound.pending_bytes + size <= self.pending_bytes_max // parts
        )
        return fits

    def report_room(self, conn: LoopConnection) -> None:
        """Call ``Handler.has_room`` once a connection that ``can_take`` rejected has free capacity."""
        conn.reports_capacity = True

    def deliver_held(self, sub: Sub, record: bytes, held_s: int) -> bool:
        """Send a copy held by ``Handler.hold`` to its subscriber, as a Route would.

        Returns:
            False if it was dropped and counted, or expired meanwhile [MQTT-3.3.2-5].
        """
        conn: LoopConnection = sub.conn
        packet: PublishView = self.second
        if conn.closed:
            self.dropped_closed += 1
            note_drop(self, conn, "closed", topic_of(record), None)
            return False
        load_record(packet, record)
        if packet.expiry_s != NO_EXPIRY:
            if held_s >= packet.expiry_s:
                self.dropped_expired += 1
                note_drop(self, conn, "expired", packet.topic, packet)
                return False
            packet.expiry_s -= held_s
        qos: cython.int = packet.qos if packet.qos < sub.qos else sub.qos
        retain: cython.bint = packet.retain and sub.retain_as_published
        delivered: bool = deliver_to(self, conn, packet, qos, retain, sub.identifiers)
        if pending_output(conn) > self.output_high:
            note_high(self, conn)
        return delivered

    def send_pick(self, copy: PendingAck, chosen: object) -> None:
        """Resume a shared group's copy that ``Handler.refused`` deferred."""
        redispatch(self, copy, chosen)

    def knows_pick(self, share: bytes, session: int, counter: int) -> bool:
        """Return whether a member here received the message of this origin as its group's pick."""
        picked: bool = was_picked(self, share, 1, session, counter)
        return picked

    def take_picks(self, conn: LoopConnection) -> list[tuple[bytes, InboundPublish]]:
        """Return (share, message) of an ended session's copies for other members of their groups; once."""
        return take_unacked_picks(self, conn)

    def read_given_up(self, record: bytes, since_ns: int) -> InboundPublish | None:
        """Return the message of ``Handler.given_up``, None if it expired meanwhile."""
        return read_pick(self, None, record, since_ns)


def _refuse_if_behind(hot: LoopState, publish: InboundPublish) -> cython.bint:
    """Check a core message that follows a refused one on its connection and topic; may disconnect the client.

    Returns:
        Whether the message is refused.
    """
    conn: LoopConnection | None = publish.conn
    if conn is None or conn.closed or conn.refused is None:
        return False
    decision: cython.int = check_refused(hot, conn, publish.topic)
    if decision == ENDS:
        hot.handler.error(conn, QUOTA_EXCEEDED)
    return decision != TAKES
