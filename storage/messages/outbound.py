"""Out to the connections of a partition's sessions: the window, packet identifiers ahead of it, and what comes back.

Commit first, then push: an entry is written with its packet identifier, and its PUSH leaves behind that operation.
A message that finds the window full is queued without one. The next entries of a queue that is being sent get theirs
together, some way ahead of the window, in the session row: when one of them enters the window that is committed long
since, and a drain does not wait for the disk once per window. So a push may overtake a PUBREL that waits for its
commit; both carry the epoch since which this node is the primary, for an edge takes nothing of a lower one.
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

PUBLISH = 3  # instead of the type of a client's packet: the edge did not write the message
NOT_AUTHORIZED = 0x87
HANDED_ON = "handed to another member"
HOLD_S = 5.0  # after which a retained read counts as ended
IDENTIFIERS_AHEAD = 512  # given to entries that wait for the window, at most
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
        self.take_group: Callable[[DurableSession, str], None] = _keep_group  # the filters', in a whole partition
        self.freed: dict[int, DurableSession] = {}  # sessions whose window may have room: for ``pump_freed``

    def push_qos0(
        self,
        session: DurableSession,
        message: PublishMessage,
        retain: bool,
        properties: bytes,
        told: Origin | None = None,
    ) -> None:
        """Send a QoS 0 message to the connection, if there is one; ``told``: its origin, where a trace wants it."""
        if told is not None and self._partition.tracing is not None:
            self._partition.tracing.pushed_qos0(self._partition.number, session, message, told)
        if not session.edge:
            return  # QoS 0 is pushed but never queued for the absent
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
            told is not None,
        )
        self._push_unkept(session, push)

    def _push_unkept(self, session: DurableSession, push: Push) -> None:
        if not self._partition.push_unkept(session, encode_push(push)):
            self._partition.count("dropped_uncommitted")
            self._partition.note("drop", "no_commit", session.client_id, push.topic)

    def push(
        self, session: DurableSession, entry: QueueEntry, flight: InFlight, *, dup: bool, settled: bool = False
    ) -> None:
        """Send an entry that has its packet identifier; ``settled`` if that was committed before."""
        partition = self._partition
        expiry_s = NO_EXPIRY
        if entry.deadline != NEVER:
            expiry_s = max(0, (entry.deadline - partition.served_ms + 999) // 1000)
        tracing = partition.tracing
        flight.traced = tracing is not None and tracing.active and tracing.is_told(session, entry)
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
        """A connection is open: send again what is in flight, in its first order [MQTT-4.4.0-1], then what waits.

        After a change of primary too: the edge knows what it wrote on this connection, does not write it twice, and
        says again what the client answered, so no acknowledgement is lost with the former primary.
        """
        session.unbind()
        session.behind = self._partition.building  # the answer to its CONNECT goes first
        for session_seq, flight in session.inflight.items():
            if flight.state == STATE_RELEASED:
                session.enter_window(flight)
                self._push_pubrel(session, session_seq, flight)
            else:
                session.unsent.append((session_seq, None, 0))
        self.free(session)

    def free(self, session: DurableSession) -> None:
        """Note that a session's window may have room."""
        self.freed[session.number] = session
        self.groups.wake(session)

    def pump_freed(self, steps_max: int) -> int:
        """Fill the windows that have room; return the steps of about ten microseconds that it took.

        It is called before the operation of a turn is closed. Windows that it does not come to wait for the next turn.
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
        """Send what waits, in order, while the window has room; give identifiers to what comes next."""
        partition = self._partition
        steps = 0
        while session.window_open and steps < steps_max:
            following = session.next_unsent()
            if following is None:  # all of them were finished before they left
                steps += self._give(session)
                following = session.next_unsent()
            if following is None:
                partition.crowded = partition.crowded or not session.caught_up
                return steps  # or written by the operation being built and not readable yet; the next event goes on
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
            steps += self._give(session)
        partition.crowded = partition.crowded or not session.caught_up
        return steps

    def _give(self, session: DurableSession) -> int:
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
        """Drop an entry that must not leave any more; its identifier is free again."""
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
        """Drop an entry that the edge did not write: the client may not receive it any more.

        A client that answers PUBACK or PUBREC with that reason code has the message: it counts as delivered. A group's
        copy goes to another member, unless it may be its second with QoS 2, or many may not have it either; a member
        that was granted all of the group's topics is none any more.
        """
        handed = session.shared and not (flight.qos == 2 and flight.repeated)
        handed = handed and self._redispatch(session, session_seq, flight)
        if self._partition.ledger is not None:
            reason = HANDED_ON if handed else "not_authorized"
            self._partition.ledger.dropped("dropped", session.number, session_seq, reason)
        session.consume(session_seq)
        self._partition.count("shares_revoked" if handed else "pushes_refused")
        if not handed:
            known = self._partition.known_of(session, session_seq, "not_authorized")
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
            # It stays a member, for its rules allow other topics. Who else may have this one, no partition knows: each
            # of some members is asked.
            if hops_of(entry.origin_kind, entry.origin_a) >= HOPS_MAX:
                return False
        elif name in session.subscriptions:
            # The group is granted for all of its topics, so it is not any more. Its edge's order may be behind this, or
            # lost with a node; as long as it is a member, it is picked again.
            self.take_group(session, name)
            self._partition.count("groups_taken")
        self._redispatches.keep(entry, flight.size)
        self._redispatches.send_some()
        return True

    def _pass_over(self, session: DurableSession, entry: QueueEntry, size: int) -> None:
        """Consume an entry that waits without an identifier, and is not to be sent."""
        session.forget(entry.session_seq, size)
        passed_over = session.identifiers.allocate()  # each message counts up, as at brokers that number when queueing
        if passed_over is not None:
            session.identifiers.release(passed_over)
        self._consumed.note(session, entry.body)

    def _read_ahead(self, session: DurableSession, wanted: int) -> None:
        """Read up to so many of the entries that wait, and as few of them as fill AHEAD_BYTES."""
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
        while len(session.ready) < min(wanted, 8, len(session.sizes)):  # rows on their way to the store
            value_now = partition.get(keys.queue_key(partition.number, session.number, expected))
            if value_now is None:
                break
            session.ready.append(decode_entry(expected, value_now))
            expected += 1

    def hold(self, session: DurableSession, read: int) -> None:
        """A retained read begins: live messages queue until ``unhold``, at most HOLD_S."""
        partition = self._partition
        deadline = partition.deadline_in(HOLD_S)
        session.reads = session.reads or SessionReads()
        session.reads.begin(read, deadline)
        partition.set_timer(deadline, EndHold(session.number))

    def unhold(self, session: DurableSession, read: int) -> None:
        """A retained read ended."""
        if session.reads is not None:
            session.reads.end(read)
            if not session.reads:
                session.reads = None
        if not session.held:
            self.free(session)

    def hold_expired(self, session: DurableSession) -> None:
        """Live messages have waited long enough for one read; for later ones they go on waiting."""
        if session.reads is not None:
            session.reads.expire(self._partition.served_ms)
        if not session.held:
            self.free(session)

    def end_holds(self, session: DurableSession) -> None:
        """Its queue fills while it is held back: live messages go on before their reads have ended."""
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
            self._push_unkept(session, push)

    def acknowledged(self, ack: PushAck) -> None:
        """Take a PUBACK, PUBREC or PUBCOMP of the connection that owns the session now, or its edge's refusal."""
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
            return  # a repeat of one that is recorded already, or not what this message is finished with
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


def _keep_group(session: DurableSession, name: str) -> None:
    """Without filters there is no member."""
