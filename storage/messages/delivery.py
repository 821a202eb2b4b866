"""Messages of a partition: accepted once, queued for its sessions, and pushed to their connections.

Processing order of one message: duplicate check (``origins``), receivers (``targets``), queue bounds, then one row per
session and, if the window is open, its push (``outbound``). Acknowledged entries are deleted in batches
(``consumed``). A retained copy and the live copy of a message meet here: the older one never follows the newer one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from mqtt.reasons import ReasonCode
from storage.messages.abandoned_copies import AbandonedCopies
from storage.messages.bodies import Bodies
from storage.messages.consumed import Consumed
from storage.messages.fast_path_acks import FastPathAcks
from storage.messages.origins import Origins, is_remembered
from storage.messages.outbound import InFlightEntries
from storage.messages.purges import Purges
from storage.messages.redispatch import RedispatchQueue
from storage.messages.targets import Target, Targets
from storage.state import keys
from storage.state.durable_sessions import READY_MAX, DurableSession
from storage.state.partition import Partition
from storage.state.rows import (
    ENTRY_OVERHEAD_BYTES,
    NEVER,
    STATE_QUEUED,
    STATE_RELEASED,
    STATE_SENT,
    QueueEntry,
    decode_entry,
    encode_entry,
)
from wire.messages.batches import NO_EXPIRY, PublishMessage, encode_publish_ack
from wire.messages.frames import FrameKind
from wire.messages.overlapping import COPIES_MAX
from wire.messages.retained import RetainedMessage
from wire.messages.sessions import SessionSubscription
from wire.queries.traces import Origin

__all__ = ["COPIES_ALL", "PartitionDelivery"]

COPIES_ALL = 1 << 60
RETAINED_ORIGINS_MAX = 256  # of retained copies, remembered per session so that live duplicates are dropped
LIVE_RETAINED_MAX = 64  # most recent topics per session
COPIES_FILL = 0.75  # of a queue, that retained copies may fill
HELD_FILL = 0.5  # fill of a queue above which live messages are not held for retained reads
OVERTAKEN_MAX = 64  # topics per session whose queued retained copies are older than a sent message


@dataclass(slots=True)
class _FanoutCursor:
    """A message with receivers left; they get their copies within the operation that is being built."""

    message: PublishMessage
    node: str
    targets: list[Target]
    deadline: int
    body: int
    traced_origin: Origin | None


class PartitionDelivery:
    """Messages of one partition, and their acknowledgements."""

    def __init__(self, partition: Partition, live: Callable[[str, int], str]) -> None:
        self._partition = partition
        self.origins = Origins(partition)
        self.targets = Targets(partition)
        self.bodies = Bodies(partition)
        self.consumed = Consumed(partition, self.bodies)
        self.redispatches = RedispatchQueue(partition, self.bodies, live, self.targets.groups.note_redispatched)
        self.outbound = InFlightEntries(partition, self.bodies, self.consumed, self.targets.groups, self.redispatches)
        self.fast_path_acks = FastPathAcks(partition, self.consumed, self.outbound)
        self.abandoned_copies = AbandonedCopies(partition, self.consumed, self.outbound, self.redispatches)
        self.purges = Purges(partition, self.consumed)
        self._traced_origin: Origin | None = None  # origin of the current message if it is traced
        self._cursor: _FanoutCursor | None = None

    # --- incoming messages

    @property
    def in_progress(self) -> bool:
        """Whether the current message has receivers left. Call ``resume`` before the operation is closed."""
        return self._cursor is not None

    def publish(self, message: PublishMessage, node: str, incarnation: int, most: int = COPIES_ALL) -> int:
        """Accept one message from an edge, acknowledged when it is committed; return how many copies were made.

        It is ``in_progress`` if it has more receivers than ``most``.
        """
        if self._cursor is not None:
            self.resume()
        partition = self._partition
        if self.origins.is_repeat(message, node, incarnation):
            partition.count("repeats")
            self.acknowledge(message, node, ReasonCode.SUCCESS)
            return 0
        targets = list(self.targets.of(message))
        refusal = self._refusal(message, targets)
        if refusal:
            partition.count("refused_queue_full" if targets else "refused_no_member")
            origin = message.origin_kind, message.origin_a or incarnation, message.origin_b or message.tag
            reason = "queue_full" if targets else "no_subscriber_took"
            partition.note("refused", reason, topic=message.topic, origin=origin)
            self.acknowledge(message, node, refusal)
            return 0
        if is_remembered(message):
            self.origins.remember(message, node, incarnation)
        self._traced_origin = self._traced(message, incarnation)
        deadline = NEVER if message.expiry_s == NO_EXPIRY else partition.deadline_in(message.expiry_s)
        body = self._shared_body(message, targets)
        if len(targets) > most:
            self._cursor = _FanoutCursor(message, node, targets[::-1], deadline, body, self._traced_origin)
            return self.resume(most)
        for session, subscription, identifiers in targets:
            self._enqueue(session, message, subscription, identifiers, deadline, body, node)
        self._finish(message, node)
        return len(targets)

    def resume(self, most: int = COPIES_ALL) -> int:
        """Make copies of the unfinished message; return how many. No other message may be accepted before."""
        rest = self._cursor
        assert rest is not None, "no message is unfinished"
        message, node, targets, self._traced_origin = rest.message, rest.node, rest.targets, rest.traced_origin
        count = min(most, len(targets))
        for _ in range(count):
            session, subscription, identifiers = targets.pop()
            self._enqueue(session, message, subscription, identifiers, rest.deadline, rest.body, node)
        if targets:
            self._traced_origin = None
        else:
            self._cursor = None
            self._finish(message, node)
        return count

    def _finish(self, message: PublishMessage, node: str) -> None:
        """Acknowledge a message: every receiver has its copy."""
        partition = self._partition
        if partition.ledger is not None:
            partition.ledger.taken(message, node)
        if self._traced_origin is not None:
            if message.qos:
                partition.trace_commit(message.topic, self._traced_origin)
            self._traced_origin = None
        self.acknowledge(message, node, ReasonCode.SUCCESS)

    def _traced(self, message: PublishMessage, incarnation: int) -> Origin | None:
        """Return the origin of a message that is traced, else None."""
        tracing = self._partition.tracing
        if tracing is None or not tracing.active:
            return None
        origin = message.origin_kind, message.origin_a or incarnation, message.origin_b or message.tag
        return origin if tracing.wants(message, origin) else None

    def acknowledge(self, message: PublishMessage, node: str, reason_code: int) -> None:
        """Send the PUBLISH_ACK of a message to its edge once the operation being built is committed."""
        if message.tag:
            record = encode_publish_ack(message.tag, self._partition.number, reason_code)
            self._partition.emit(node, FrameKind.PUBLISH_ACK, record)

    def _refusal(self, message: PublishMessage, targets: list[Target]) -> int:
        if message.share and not targets and message.qos:
            # Distinct from a member with a full queue: there is no such member here
            return ReasonCode.TOPIC_FILTER_INVALID
        if self._partition.settings.queue_full != "refuse" or not message.qos:
            return 0
        size = len(message.payload) + len(message.topic) + len(message.properties) + ENTRY_OVERHEAD_BYTES
        copies: dict[int, int] = {}
        for session, subscription, _ in targets:
            if subscription.qos:
                copies[session.number] = copies.get(session.number, 0) + 1
                if self._exceeds_bounds(session, size, copies[session.number]):
                    return ReasonCode.QUOTA_EXCEEDED
        return 0

    def _exceeds_bounds(self, session: DurableSession, size: int, copies: int = 1) -> bool:
        settings = self._partition.settings
        messages, octets = session.queue_most(settings.queue_messages_max, settings.queue_bytes_max)
        return session.queued + copies > messages or session.queue_bytes + copies * size > octets

    def can_queue_copy(self, session: DurableSession, size: int, fill: float = COPIES_FILL) -> bool:
        """Return whether a retained copy may be queued: the rest of the queue is reserved for live messages."""
        settings = self._partition.settings
        messages, octets = session.queue_most(settings.queue_messages_max, settings.queue_bytes_max)
        queued = session.queued
        return not queued or (queued < messages * fill and session.queue_bytes + size <= octets * fill)

    def _shared_body(self, message: PublishMessage, targets: list[Target]) -> int:
        """Store a body once for several sessions, or in pieces if it is large; return its id, 0 for inline."""
        partition = self._partition
        settings = partition.settings
        size = len(message.payload)
        references = sum(1 for _, subscription, _ in targets if min(subscription.qos, message.qos))
        if not references or size <= settings.inline_bytes_max or (references == 1 and size <= settings.piece_bytes):
            return 0
        return self.bodies.store(message.payload, references)

    def _enqueue(
        self,
        session: DurableSession,
        message: PublishMessage,
        subscription: SessionSubscription,
        identifiers: bytes,
        deadline: int,
        body: int,
        node: str,
    ) -> None:
        ledger = self._partition.ledger
        qos = min(message.qos, subscription.qos)
        retain = message.retain and subscription.retain_as_published  # [MQTT-3.3.1-12], [MQTT-3.3.1-13]
        properties = message.properties + identifiers
        if message.retain and not message.share:
            self._remember_live(session, message)
        if qos == 0:
            if message.retain and not message.share and session.edge:
                self._overtake(session, message.topic)  # never held: an older retained copy must not follow it
            self.outbound.push_qos0(session, message, retain, properties, self._traced_origin)
            return
        if message.retain and not message.share:
            origin = message.origin_kind, message.origin_a, message.origin_b or message.tag
            went = session.retained_origins.get(origin)
            if went is not None and (subscription.merged or subscription.identifier in went):
                self._partition.count("retained_twins")  # its retained copy was sent first
                if ledger is not None:
                    ledger.not_queued(message, node, session.number, "retained copy went first")
                return
            if session.reads is not None:
                session.reads.record_live(message.topic)
        entry = QueueEntry(
            session.next_seq,
            message.topic,
            message.payload,
            properties,
            qos,
            retain,
            deadline,
            0,
            STATE_QUEUED,
            message.origin_kind,
            message.origin_a,
            message.origin_b,
            body,
        )
        if message.share:
            session.shared = True
            entry.share, entry.own_bytes = message.share, len(identifiers)
            entry.published = message.qos | (4 if message.retain else 0)
        if ledger is not None:
            ledger.matched += (session.number, entry.session_seq)
        self.enqueue(session, entry)

    def _overtake(self, session: DurableSession, topic: bytes) -> None:
        """Cancel older retained copies of a topic, read or queued, whose newer message is sent live at QoS 0."""
        if session.reads is not None:
            session.reads.record_live(topic)
        session.copies_to = min(session.copies_to, session.next_seq)
        if session.copies_to > session.head:  # replicated with this push, so that a later primary knows it too
            marks = session.overtaken
            marks[topic] = session.copies_to
            if len(marks) > OVERTAKEN_MAX:
                del marks[next(iter(marks))]
                self._partition.count("overtaken_forgotten")
            self._partition.touch(session)

    def enqueue_copy(self, session: DurableSession, entry: QueueEntry) -> None:
        """Append a retained copy; it is dropped if a newer value of its topic is sent first."""
        entry.copy = True
        self.enqueue(session, entry)
        session.copies_to = session.next_seq

    def enqueue(self, session: DurableSession, entry: QueueEntry) -> None:
        """Append an entry to a session's queue, and push it if the window is open.

        Its session_seq is the session's next.
        """
        partition = self._partition
        size = len(entry.topic) + len(entry.payload) + len(entry.properties) + ENTRY_OVERHEAD_BYTES
        while session.sizes and self._exceeds_bounds(session, size):
            self._drop_oldest(session)
        life_s = partition.settings.message_expiry_max_s
        if life_s:
            latest = partition.deadline_in(life_s)
            entry.deadline = latest if entry.deadline == NEVER else min(entry.deadline, latest)
        entry.arrived = max(1, partition.served_ms)
        if not session.aged:
            partition.ages.note(session, entry.arrived)
        if self._traced_origin is not None and partition.tracing is not None:
            partition.tracing.queued(partition.number, session, entry, self._traced_origin)
        session.next_seq += 1
        session.queue_bytes += size
        if session.window_open and session.caught_up:
            flight = session.begin(entry, size)
            session.push_seq = session.next_seq
            entry.packet_identifier = flight.packet_identifier
            entry.state = STATE_SENT
            self.outbound.push(session, entry, flight, dup=False)
        else:
            partition.crowded = True
            if session.reads is not None and not self.can_queue_copy(session, 0, HELD_FILL):
                self.outbound.end_holds(session)
            if session.edge and len(session.ready) == len(session.sizes) < READY_MAX:
                session.ready.append(entry)
            session.sizes.append(size)
        partition.put(keys.queue_key(partition.number, session.number, entry.session_seq), encode_entry(entry))

    def _drop_oldest(self, session: DurableSession) -> None:
        body = self._body_of(session, session.push_seq)
        if self._partition.ledger is not None:
            self._partition.ledger.dropped("dropped", session.number, session.push_seq, "queue full")
        known_seq = session.push_seq
        known = self._partition.find_entry(session, known_seq, "queue_full")
        session.drop_oldest_waiting()
        session.dropped += 1
        self._partition.count("dropped_queue_full")
        self._partition.note("drop", "queue_full", session.client_id, *known, f"entry {known_seq}, the oldest")
        self.consumed.note(session, body)

    # --- retained copies and live copies of the same message

    def _remember_live(self, session: DurableSession, message: PublishMessage) -> None:
        """Remember a live message with RETAIN: another partition may store it as retained only later."""
        live = session.live_retained
        live.pop(message.topic, None)
        live[message.topic] = message.origin_kind, message.origin_a, message.origin_b or message.tag
        if len(live) > LIVE_RETAINED_MAX:
            del live[next(iter(live))]

    def is_overtaken(self, session: DurableSession, message: RetainedMessage) -> bool:
        """Return whether a retained copy is suppressed because another message of its topic was sent live.

        Either the copy is older: the live message was not stored when it was read. Or it is newer and is sent live as
        well, since the subscription still exists (``forget_live``).
        """
        known = session.live_retained.get(message.topic.encode())
        return known is not None and known != (message.origin_kind, message.origin_a, message.origin_b)

    def forget_live(self, session: DurableSession) -> None:
        """Forget live messages when a subscription ends: later messages may not arrive live."""
        session.live_retained.clear()

    def remember_retained(self, session: DurableSession, message: RetainedMessage, identifier: int) -> None:
        """Remember a sent retained copy: a later live copy of the same origin and subscription is its duplicate."""
        origins = session.retained_origins
        origin = message.origin_kind, message.origin_a, message.origin_b
        known = origins.get(origin, ())
        if identifier not in known and len(known) < COPIES_MAX:
            origins[origin] = (*known, identifier)
        if len(origins) > RETAINED_ORIGINS_MAX:
            del origins[next(iter(origins))]

    # --- the end of a session

    def drop_queue(self, session: DurableSession) -> None:
        """Delete every row of a session's queue at the session's end. A group's copies go to other members."""
        self.drop_some(session, session.queued)
        partition = self._partition
        for session_seq in range(session.push_seq, session.next_seq):
            partition.delete(keys.queue_key(partition.number, session.number, session_seq))
        session.unbind()

    def drop_some(self, session: DurableSession, most: int) -> None:
        """Delete the oldest rows of the queue of an ended session."""
        partition = self._partition
        inflight = dict(islice(session.inflight.items(), most))
        waiting = list(enumerate(islice(session.sizes, most - len(inflight)), session.push_seq))
        self.redispatches.take(session, inflight, waiting)
        for session_seq, flight in inflight.items():
            if flight.state != STATE_RELEASED:
                self.bodies.release(flight.body)
                partition.delete(keys.queue_key(partition.number, session.number, session_seq))
            if flight.stored:
                partition.delete(keys.inflight_key(partition.number, session.number, session_seq))
            session.queue_bytes -= flight.size
            del session.inflight[session_seq]
        for session_seq, size in waiting:
            self.bodies.release(self._body_of(session, session_seq))
            partition.delete(keys.queue_key(partition.number, session.number, session_seq))
            session.queue_bytes -= size
            session.sizes.popleft()
        session.push_seq += len(waiting)

    def forget_session(self, session: DurableSession) -> None:
        """Remove a deleted session from pending acknowledgements and groups."""
        self.consumed.forget_session(session)
        self.targets.forget_session(session)

    def _body_of(self, session: DurableSession, session_seq: int) -> int:
        """Return the id of a queued entry's shared body, 0 for none."""
        partition = self._partition
        if not partition.body_references:
            return 0
        value = partition.get(keys.queue_key(partition.number, session.number, session_seq))
        return decode_entry(session_seq, value).body if value is not None else 0
