"""Routes, and messages that the edge core publishes, acknowledges or delivers itself.

Second chapter of ``Engine`` (``edge/loop/broker_loop.py``). A message that is parsed here goes its way without the
core: ``edge/loop/inbound.py``.
"""

import itertools
from collections.abc import Callable

import cython

from edge.loop.connections import Connections
from edge.loop.picks import read_pick
from edge.loop.state import (
    HotState,
    InboundPublish,
    LoopConnection,
    OutboundWindow,
    PendingAck,
    PublishView,
    Route,
    Sub,
)

if not cython.compiled:
    from edge.loop.acks import count_back, destination_done, new_message
    from edge.loop.deliver import deliver_to
    from edge.loop.fanout import fan_out, redispatch
    from edge.loop.layout import NO_EXPIRY, NO_MATCHING_SUBSCRIBERS, QUOTA_EXCEEDED, SERVER_BUSY
    from edge.loop.notes import note_drop
    from edge.loop.origins import was_picked
    from edge.loop.outboxes import park_if_primary_full
    from edge.loop.output import note_high, pending_output, unpark, write_short
    from edge.loop.picks import unfinished_picks
    from edge.loop.records import load_record, topic_of
    from edge.loop.refused_topics import ENDS, TAKES, judge_refused
    from edge.loop.reported_origins import forget_origin
    from edge.loop.routes import known_route
    from edge.loop.state import PARK_QUOTA, RELEASE_PENDING

__all__ = ["PublishMethods"]


class PublishMethods(Connections):
    """Routes, and messages of the core."""

    def install_route(self, topic: bytes, route: Route) -> None:
        """Cache where a topic goes; the oldest entry is dropped beyond ``routes_max``."""
        if topic in self.routes:
            self.routes_version += 1  # connections remember the Route that they used last
        elif len(self.routes) >= self.routes_max:
            del self.routes[next(iter(self.routes))]
            self.routes_version += 1
        route.generation = self.generation
        self.routes[topic] = route

    def route(self, topic: bytes) -> Route | None:
        """Return the cached Route, right as of now."""
        return known_route(self, topic)

    def clear_used(self, topic: bytes) -> bool:
        """Clear the used mark of a Route; return whether its second message, or one since the last call, set it."""
        route: Route | None = self.routes.get(topic)
        if route is None or route.uses < 2:
            return False
        route.uses = 1
        return True

    def keep_route(self, route: Route) -> None:
        """Say in ``Handler.refresh`` that a Route is right."""
        route.generation = self.generation

    def replace_route(self, route: Route) -> None:
        """Put a Route in the place of the topic's former one, in ``Handler.refresh``."""
        route.generation = self.generation
        # No connection remembers the former one: the change of generation made each of them look again.
        self.routes[route.topic] = route

    def drop_route(self, topic: bytes) -> None:
        """Forget a topic's Route and the local subscribers kept for forwarded messages. Unknown topics are fine."""
        if self.routes.pop(topic, None) is not None:
            self.routes_version += 1
        self.local_routes.pop(topic, None)

    def drop_routes(self) -> None:
        """Forget all of them."""
        self.routes.clear()
        self.local_routes.clear()
        self.routes_version += 1

    def drop_oldest_local(self, count: int) -> None:
        """Forget the local subscribers kept for the topics that were forwarded first."""
        for topic in list(itertools.islice(self.local_routes, count)):
            del self.local_routes[topic]

    def refresh_routes(self) -> None:
        """Have every Route looked at before it is used again: subscriptions or peers changed."""
        self.generation += 1
        self.routes_version += 1

    def refresh_route(self, topic: bytes) -> None:
        """Have one topic's Route looked at before it is used again."""
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
        """Send a message to every destination of the route, like one that was parsed.

        With ``publish.conn`` and QoS 1/2, PUBACK or PUBREC is written when all destinations have acknowledged, in the
        order in which ``Handler.inbound`` was called. ``on_done`` gets the final reason code (0, 0x10, or >= 0x80); at
        once if nothing has to be waited for.

        Args:
            route: The topic's route, from ``route`` or made for this call.
            publish: What to send. ``retain`` goes to the partition below and to subscribers with retain_as_published.
            retained_partition: The partition that retains the message, -1 for none.
            origin_kind: OriginKind; EDGE gives (incarnation, tag) and ignores the other two.
            origin_a: Session number, or will partition << 32 | partition_epoch.
            origin_b: Inbound counter, or op_index.
            on_done: Called once; what it returns says whether the acknowledgement waits for ``acknowledge``.
            written: (tag, partition) of what this method returned when the same message was retained.
            owner: Whose it is, for the partition below alone: ``encode_owner`` of wire/messages/batches.py.

        Returns:
            Its tag, 0 for QoS 0.
        """
        message: PendingAck | None = publish.reserved_ack
        publish.reserved_ack = None
        if message is None and (publish.qos > 0 or on_done is not None):
            message = new_message(self, publish.qos, publish.conn, 0)
            message.waiting = 1
        elif message is not None:
            # Numbered when it came, and others have left since: a partition takes a lower number for a repeat.
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
            self.origin_tag = written[0]  # one origin: a retained copy and its live twin are told by it
        if message is not None:
            message.origin_kind = origin_kind
            message.origin_a = origin_a
            message.origin_b = origin_b if origin_kind else self.origin_tag
        if code == 0 and message is not None and publish.qos > 0 and _refuse_if_behind(self, publish):
            code = SERVER_BUSY  # as the partition says it
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
            message.retained_partition = written[1]  # for the audit: both went by one origin
        if code == 0 and route.empty:
            code = NO_MATCHING_SUBSCRIBERS  # kept as retained, perhaps; nobody subscribed
        destination_done(self, message, code)
        return tag

    def load_inbound(self, publish: InboundPublish) -> PublishView:
        """Make the core's message the one at hand."""
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
        """Answer a PUBLISH of ``Handler.inbound`` in order with the others: not sent anywhere, or kept back since."""
        message: PendingAck | None = publish.reserved_ack
        publish.reserved_ack = None
        if message is not None:
            destination_done(self, message, reason_code)

    def bears(self, publish: InboundPublish, origin_kind: int, origin_a: int, origin_b: int) -> None:
        """Note which origin a message went by whose answer is due, and that is not published itself; as ``publish``."""
        message: PendingAck | None = publish.reserved_ack
        if message is not None:
            message.origin_kind = origin_kind
            message.origin_a = origin_a
            message.origin_b = origin_b

    def released(self, conn: LoopConnection, packet_identifier: int, reason_code: int) -> None:
        """Write PUBCOMP for a PUBREL of ``Handler.pubrel`` and count its quota back."""
        if conn.closed:
            return
        write_short(self, conn, 0x70, packet_identifier, reason_code)
        conn.has_acks = True
        if conn.received is None or conn.received.get(packet_identifier) != RELEASE_PENDING:
            return  # it came on an earlier connection, or PUBREL twice
        del conn.received[packet_identifier]
        if conn.origins is not None:
            forget_origin(conn, packet_identifier)
        if conn.version == 5:
            count_back(self, conn)
        elif conn.parked & PARK_QUOTA:
            unpark(self, conn, PARK_QUOTA)  # on the next message with this identifier, perhaps

    def deliver(self, conn: LoopConnection, publish: InboundPublish, qos: int, identifiers: bytes = b"") -> bool:
        """Send one message to one ephemeral session outside any route, as retained copies are; RETAIN as given.

        Returns:
            False if it was dropped, counted.
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
        """Return whether a message from a source that can wait is sent or queued, and none is dropped for it.

        Up to half of what may be queued for the session, and less than may be of its output: the rest is for live
        messages.

        Args:
            conn: Where to; a closed one takes nothing.
            size: Bytes of the message, at least.
            qos: Of the copy.
            live: It is a live message, which has all of the bounds.
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
        """Call ``Handler.has_room`` when a connection of which ``can_take`` said no has taken more."""
        conn.reports_room = True

    def deliver_held(self, sub: Sub, record: bytes, held_s: int) -> bool:
        """Send a copy that ``Handler.hold`` took to its subscriber after all, as a Route would.

        Returns:
            False if it was dropped, counted; what has expired meanwhile too [MQTT-3.3.2-5].
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
        """Go on with a shared group's copy that ``Handler.refused`` answered with the copy itself."""
        redispatch(self, copy, chosen)

    def knows_pick(self, share: bytes, session: int, counter: int) -> bool:
        """Whether a member here got the message of this origin as its group's pick."""
        picked: bool = was_picked(self, share, 1, session, counter)
        return picked

    def take_picks(self, conn: LoopConnection) -> list[tuple[bytes, InboundPublish]]:
        """Return (share, message) of copies that an ended session leaves for another member of their groups; once."""
        return unfinished_picks(self, conn)

    def read_given_up(self, record: bytes, since_ns: int) -> InboundPublish | None:
        """Return the message that ``Handler.given_up`` was told of, None if it expired meanwhile."""
        return read_pick(self, None, record, since_ns)


def _refuse_if_behind(hot: HotState, publish: InboundPublish) -> cython.bint:
    """Judge a message of the core that follows one without room, on its connection and topic: a client may end by it.

    Returns:
        Whether the message is refused.
    """
    conn: LoopConnection | None = publish.conn
    if conn is None or conn.closed or conn.refused is None:
        return False
    judged: cython.int = judge_refused(hot, conn, publish.topic)
    if judged == ENDS:
        hot.handler.error(conn, QUOTA_EXCEEDED)
    return judged != TAKES
