"""Outbound messages of a partition's sessions: send window, packet identifiers ahead of it, and acknowledgements.

Commit first, then push: an entry is written with its packet identifier, and its PUSH leaves after that operation. If
the window is full, a message is queued without an identifier. The next entries of a draining queue get identifiers
together, ahead of the window, in the session row. When one of them enters the window, its identifier is already
committed, so a drain does not wait for the disk once per window. Therefore a push may overtake a PUBREL that waits for
its commit. Both carry the epoch since which this node is primary, because an edge rejects lower ones.
"""

from collections.abc import Callable
from itertools import islice

from storage.messages.bodies import Bodies
from storage.messages.consumed import Consumed
from storage.messages.groups import Groups
from storage.messages.redispatch import RedispatchQueue
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from storage.state.rows import NEVER, STATE_RELEASED, InflightRow, QueueEntry, decode_entry, pack
from storage.state.session_reads import SessionReads
from storage.state.session_window import InFlight
from storage.state.timers import EndHold
from wire.messages.batches import NO_EXPIRY, PublishMessage, Push, PushAck, encode_push
from wire.messages.frames import FrameKind
from wire.messages.redispatch import HOPS_MAX, hops_of
from wire.messages.retained import RetainedMessage
from wire.queries.traces import Origin

__all__ = ["HANDED_ON", "InFlightEntries"]

PUBLISH = 3  # instead of a client's packet type: the edge did not write the message
NOT_AUTHORIZED = 0x87
HANDED_ON = "handed to another member"
HOLD_S = 5.0  # timeout after which a retained read counts as ended
IDENTIFIERS_AHEAD = 512  # maximum for entries that wait for the window
AHEAD_BYTES = 512 * 1024  # of their bodies, in memory
GIVEN_PER_STEP = 2  # identifiers, with the entries that are read for them
BYTES_PER_STEP = 8192  # of a message that is sent


class InFlightEntries:
    """Entries on their way from one partition to the connections of its sessions."""

    def __init__(
        self, partition: Partition, bodies: Bodies, consumed: Consumed, groups: Groups, redispatches: RedispatchQueue
    ) -> None:
        self._partition = partition
        self._bodies = bodies
        self._consumed = consumed
        self.groups = groups
        self._redispatches = redispatches
        self.take_group: Callable[[DurableSession, str], None] = (
            _ignore_group  # replaced by ``Subscriptions.take_group``
        )
        self.freed: dict[int, DurableSession] = {}  # sessions whose window may be open: for ``pump_freed``

    def push_qos0(
        self,
        session: DurableSession,
        message: PublishMessage,
        retain: bool,
        properties: bytes,
        origin: Origin | None = None,
    ) -> None:
        """Send a QoS 0 message to the connection, if there is one; ``origin`` is its origin if it is traced."""
        if origin is not None and self._partition.tracing is not None:
            self._partition.tracing.pushed_qos0(self._partition.number, session, message, origin)
        if not session.edge:
            return  # QoS 0 messages are not queued for disconnected sessions
        push = Push(
            session.number,
            session.owner_epoch,
            self._partition.since,
            0,
            0,
            0,
            message.topic,
            message.payload,
            properties,
            retain,
            False,
            False,
            message.expiry_s,
            origin is not None,
        )
        self._push_unqueued(session, push)

    def _push_unqueued(self, session: DurableSession, push: Push) -> None:
        if not self._partition.push_unqueued(session, encode_push(push)):
            self._partition.count("dropped_uncommitted")
            self._partition.note("drop", "no_commit", session.client_id, push.topic)

    def push(
        self, session: DurableSession, entry: QueueEntry, flight: InFlight, *, dup: bool, settled: bool = False
    ) -> None:
        """Send an entry that has its packet identifier; ``settled`` if the identifier was committed before."""
        partition = self._partition
        expiry_s = NO_EXPIRY
        if entry.deadline != NEVER:
            expiry_s = max(0, (entry.deadline - partition.served_ms + 999) // 1000)
        tracing = partition.tracing
        flight.traced = tracing is not None and tracing.active and tracing.is_traced(session, entry)
        if flight.traced and tracing is not None:
            tracing.pushed(partition.number, session, entry, flight)
        payload = entry.payload
        if entry.body and not payload:
            payload = self._bodies.read(entry.body)
        push = Push(
            session.number,
            session.owner_epoch,
            partition.since,
            entry.session_seq,
            flight.packet_identifier,
            entry.qos,
            entry.topic,
            payload,
            entry.properties,
            entry.retain,
            dup,
            False,
            expiry_s,
            flight.traced,
        )
        partition.push(session, encode_push(push), settled=settled)

    def _push_pubrel(self, session: DurableSession, session_seq: int, flight: InFlight) -> None:
        push = Push(
            session.number,
            session.owner_epoch,
            self._partition.since,
            session_seq,
            flight.packet_identifier,
            2,
            pubrel=True,
        )
        self._partition.emit(session.edge, FrameKind.PUSH, encode_push(push))

    def resume(self, session: DurableSession) -> None:
        """Send in-flight messages again in their original order [MQTT-4.4.0-1], then queued ones, on a new connection.

        Also after a change of primary: the edge does not write a message twice on this connection, and repeats the
        client's acknowledgements, so none is lost with the former primary.
        """
        session.unbind()
        session.behind = self._partition.building  # the CONNECT response goes first
        for session_seq, flight in session.inflight.items():
            if flight.state == STATE_RELEASED:
                session.enter_window(flight)
                self._push_pubrel(session, session_seq, flight)
            else:
                session.unsent.append((session_seq, None, 0))
        self.free(session)

    def free(self, session: DurableSession) -> None:
        """Mark a session whose window may be open."""
        self.freed[session.number] = session
        self.groups.wake(session)

    def pump_freed(self, steps_max: int) -> int:
        """Fill the open windows; return the steps of about ten microseconds that it took.

        Called before an iteration's operation is closed. Remaining windows wait for the next iteration.
        """
        steps = 0
        while self.freed and steps < steps_max:
            session = self.freed.pop(next(iter(self.freed)))
            if self._partition.sessions.get(session.number) is session:
                steps += 1 + self._pump(session, steps_max - steps)
                self.groups.wake(session)
                if steps >= steps_max and session.window_open and not session.caught_up:
                    self.freed[session.number] = session
        return steps

    def _pump(self, session: DurableSession, steps_max: int) -> int:
        """Send queued entries in order while the window is open; give identifiers to the next ones."""
        partition = self._partition
        steps = 0
        while session.window_open and steps < steps_max:
            following = session.next_unsent()
            if following is None:  # all of them were consumed before they were sent
                steps += self._give_identifiers(session)
                following = session.next_unsent()
            if following is None:
                partition.crowded = partition.crowded or not session.caught_up
                return steps  # or its row is part of the operation being built: the next event resumes
            steps += 1 + following[1].size // BYTES_PER_STEP
            session_seq, flight, entry = following
            if entry is None:
                value = partition.get(keys.queue_key(partition.number, session.number, session_seq))
                if value is None:
                    continue
                entry = decode_entry(session_seq, value)
            if not flight.sent and self._drop_unsent(session, session_seq, entry):
                continue
            session.enter_window(flight)
            dup, flight.sent = flight.sent, True
            flight.repeated = dup
            while session.given and session.given[0][1] <= partition.released:
                session.given.popleft()
            settled = not session.given or session_seq < session.given[0][0]
            self.push(session, entry, flight, dup=dup, settled=settled)
        if session.sizes and session.edge and len(session.unsent) <= IDENTIFIERS_AHEAD // 2:
            steps += self._give_identifiers(session)
        partition.crowded = partition.crowded or not session.caught_up
        return steps

    def _give_identifiers(self, session: DurableSession) -> int:
        """Give packet identifiers to the next entries of the queue, as one run of the session row; return the steps."""
        partition = self._partition
        settings = partition.settings
        messages, _ = session.queue_most(settings.queue_messages_max, settings.queue_bytes_max)
        ahead = min(IDENTIFIERS_AHEAD, messages // 4)
        wanted = max(ahead, session.window - session.out) - len(session.unsent)
        first = session.push_seq
        while wanted > 0 and session.sizes and (not session.unsent or session.unsent_bytes < AHEAD_BYTES):
            if not session.ready:
                self._read_ahead(session, wanted)
                if not session.ready:
                    break
            entry = session.ready.popleft()
            size = session.sizes.popleft()
            session.push_seq = entry.session_seq + 1
            if entry.handed:
                self._pass_over(session, entry, size)
                continue
            if entry.deadline != NEVER and entry.deadline <= partition.served_ms:  # [MQTT-3.3.2-5]
                if partition.ledger is not None:
                    partition.ledger.dropped("expired", session.number, entry.session_seq, "message expiry")
                partition.count("dropped_expired")
                self._note_drop(session, "expired", entry)
                self._pass_over(session, entry, size)
                continue
            session.give(entry, size)
            wanted -= 1
        if session.push_seq > first:
            session.given.append((first, partition.building))
            partition.touch(session)
        return (session.push_seq - first) // GIVEN_PER_STEP

    def _drop_unsent(self, session: DurableSession, session_seq: int, entry: QueueEntry) -> bool:
        """Drop an entry that must not be sent any more and free its identifier; return whether it was dropped."""
        event, count, reason = "expired", "dropped_expired", "message expiry"
        if entry.copy and session_seq < session.overtaken.get(entry.topic, 0):
            event, count, reason = "dropped", "retained_overtaken", "a newer retained value went first"
        if event == "expired" and not 0 < entry.deadline <= self._partition.served_ms:  # [MQTT-3.3.2-5]
            return False
        if self._partition.ledger is not None:
            self._partition.ledger.dropped(event, session.number, session_seq, reason)
        session.consume(session_seq)
        self._partition.count(count)
        if event == "expired":
            self._note_drop(session, "expired", entry)
        self._consumed.note(session, entry.body)
        return True

    def _note_drop(self, session: DurableSession, reason: str, entry: QueueEntry) -> None:
        origin = entry.origin_kind, entry.origin_a, entry.origin_b
        self._partition.note("drop", reason, session.client_id, entry.topic, origin, f"entry {entry.session_seq}")

    def _drop_refused(self, session: DurableSession, session_seq: int, flight: InFlight) -> None:
        """Drop an entry that the edge did not write: the client is no longer authorized to receive it.

        If a client itself answers PUBACK or PUBREC with that reason code, it has the message: that counts as
        delivered. A group's copy goes to another member, except a possible second QoS 2 delivery and a copy that used
        up its hops. A member that was granted all of the group's topics is removed.
        """
        handed = session.shared and not (flight.qos == 2 and flight.repeated)
        handed = handed and self._redispatch(session, session_seq, flight)
        if self._partition.ledger is not None:
            reason = HANDED_ON if handed else "not_authorized"
            self._partition.ledger.dropped("dropped", session.number, session_seq, reason)
        session.consume(session_seq)
        self._partition.count("shares_revoked" if handed else "pushes_refused")
        if not handed:
            known = self._partition.find_entry(session, session_seq, "not_authorized")
            self._partition.note("drop", "not_authorized", session.client_id, *known, f"entry {session_seq}")
        self._consumed.note(session, flight.body)
        self.free(session)

    def _redispatch(self, session: DurableSession, session_seq: int, flight: InFlight) -> bool:
        value = self._partition.get(keys.queue_key(self._partition.number, session.number, session_seq))
        entry = decode_entry(session_seq, value) if value is not None else None
        if entry is None or not entry.share:
            return False
        name = f"$share/{entry.share.decode()}"
        if name in (session.made("partial") or ()):
            # It stays a member, because its rules allow other topics. No partition knows which other members may
            # receive this one: a limited number of members is tried.
            if hops_of(entry.origin_kind, entry.origin_a) >= HOPS_MAX:
                return False
        elif name in session.subscriptions:
            # The group was granted for all of its topics, so the grant is revoked. The edge's order may arrive later
            # or be lost with a node. Until it is removed, it is picked again.
            self.take_group(session, name)
            self._partition.count("groups_taken")
        self._redispatches.keep(entry, flight.size)
        self._redispatches.send_some()
        return True

    def _pass_over(self, session: DurableSession, entry: QueueEntry, size: int) -> None:
        """Consume a queued entry without an identifier that must not be sent."""
        session.forget(entry.session_seq, size)
        # Each message uses up an identifier, as in brokers that number messages when queueing
        passed_over = session.identifiers.allocate()
        if passed_over is not None:
            session.identifiers.release(passed_over)
        self._consumed.note(session, entry.body)

    def _read_ahead(self, session: DurableSession, wanted: int) -> None:
        """Read up to ``wanted`` queued entries, stopping at AHEAD_BYTES."""
        partition = self._partition
        size = 0
        for count, entry_bytes in enumerate(islice(session.sizes, wanted), 1):
            size += entry_bytes
            if size >= AHEAD_BYTES:
                wanted = count
        start = keys.queue_key(partition.number, session.number, session.push_seq)
        _, stop = keys.session_range(partition.number, keys.QUEUE, session.number)
        expected = session.push_seq
        for key, value in partition.store.scan(start, stop, min(wanted, len(session.sizes))):
            session_seq = int.from_bytes(key[-8:], "big")
            if session_seq != expected:
                break
            session.ready.append(decode_entry(session_seq, value))
            expected += 1
        while len(session.ready) < min(wanted, 8, len(session.sizes)):  # rows that are not in the store yet
            value_now = partition.get(keys.queue_key(partition.number, session.number, expected))
            if value_now is None:
                break
            session.ready.append(decode_entry(expected, value_now))
            expected += 1

    def hold(self, session: DurableSession, read: int) -> None:
        """Begin a retained read: live messages queue until ``end_hold``, at most HOLD_S."""
        partition = self._partition
        deadline = partition.deadline_in(HOLD_S)
        session.reads = session.reads or SessionReads()
        session.reads.begin(read, deadline)
        partition.set_timer(deadline, EndHold(session.number))

    def end_hold(self, session: DurableSession, read: int) -> None:
        """End a retained read."""
        if session.reads is not None:
            session.reads.end(read)
            if not session.reads:
                session.reads = None
        if not session.held:
            self.free(session)

    def hold_expired(self, session: DurableSession) -> None:
        """End the holds whose deadline has passed; later reads still hold live messages."""
        if session.reads is not None:
            session.reads.expire(self._partition.served_ms)
        if not session.held:
            self.free(session)

    def end_holds(self, session: DurableSession) -> None:
        """Send live messages before their retained reads end, because the queue fills up."""
        if session.reads is not None and session.reads.hold:
            self._partition.count("holds_cut_full")
            session.reads.end_holds()
            self.free(session)

    def push_retained(self, session: DurableSession, message: RetainedMessage) -> None:
        """Send a QoS 0 retained copy to the connection, if there is one."""
        if session.edge:
            push = Push(
                session.number,
                session.owner_epoch,
                self._partition.since,
                0,
                0,
                0,
                message.topic.encode(),
                message.payload,
                message.properties,
                True,
                expiry_s=message.expiry_s,
            )
            self._push_unqueued(session, push)

    def acknowledged(self, ack: PushAck) -> None:
        """Process a PUBACK, PUBREC or PUBCOMP of the connection that owns the session, or its edge's refusal."""
        partition = self._partition
        session = partition.sessions.get(ack.session)
        if session is None or ack.owner_epoch != session.owner_epoch:
            partition.count("stale_acks")
            return
        flight = session.inflight.get(ack.session_seq)
        if ack.packet_type == PUBLISH:
            if flight is not None and flight.state != STATE_RELEASED and ack.reason_code == NOT_AUTHORIZED:
                self._drop_refused(session, ack.session_seq, flight)
            return
        if flight is None or (ack.packet_type == 4) != (flight.qos == 1):
            return  # a repeat of a recorded one, or the wrong packet type for this message's QoS
        if ack.packet_type == 7 and flight.state != STATE_RELEASED:
            return
        if flight.traced and partition.tracing is not None:
            partition.tracing.acked(partition.number, session, ack.session_seq, ack.packet_type, ack.reason_code)
        if ack.packet_type == 5 and ack.reason_code < 0x80:
            if flight.state != STATE_RELEASED:
                session.received(flight)
                self.groups.wake(session)
                partition.put(
                    keys.inflight_key(partition.number, session.number, ack.session_seq),
                    pack(InflightRow(flight.packet_identifier, STATE_RELEASED, flight.qos)),
                )
                self._bodies.release(flight.body)
                partition.delete(keys.queue_key(partition.number, session.number, ack.session_seq))
            self._push_pubrel(session, ack.session_seq, flight)
            return
        body = flight.body if flight.state != STATE_RELEASED else 0
        session.consume(ack.session_seq)
        self._consumed.note(session, body)
        self.free(session)


def _ignore_group(session: DurableSession, name: str) -> None:
    """Return without effect: a partition without filters has no members."""
