"""Messages of a partition: into the queues of its sessions, out to their connections, and gone when acknowledged.

Commit first, then push: an entry is written with its packet identifier, and its PUSH leaves behind that operation.
A message that finds the window full is queued without one. The next entries of a queue that is being sent get theirs
together, some way ahead of the window, in the session row: when one of them enters the window that is committed long
since, and a drain does not wait for the disk once per window. Repeats are known by their origin (docs/adr/0004): a
sender's messages reach a partition in the order of their counters, so one number per sender tells old from new.
"""

from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from itertools import islice

from mqtt.reasons import ReasonCode
from storage import keys
from storage.durable_sessions import READY_MAX, DurableSession, InFlight
from storage.partition import Partition
from storage.picked_origins import PickedOrigins
from storage.rows import (
    ENTRY_OVERHEAD_BYTES,
    NEVER,
    STATE_QUEUED,
    STATE_RELEASED,
    STATE_SENT,
    Entry,
    InflightRow,
    decode_entry,
    encode_entry,
    pack,
)
from storage.session_reads import SessionReads
from wire.batches import (
    NO_EXPIRY,
    OriginKind,
    PublishMessage,
    Push,
    PushAck,
    encode_publish_ack,
    encode_push,
)
from wire.frames import FrameKind
from wire.messages import RetainedMessage, Subscription

__all__ = ["Delivery", "edge_sender"]

_SUBSCRIPTION_IDENTIFIER = b"\x0b"
HOLD_S = 5.0  # after which a retained read counts as ended
RETAINED_ORIGINS_MAX = 256  # of retained copies, remembered per session so that their live twins are dropped
LIVE_RETAINED_MAX = 64  # topics per session, the last ones
SESSION_ORIGINS_MAX = 100_000  # per partition: nobody tells it that a publishing session elsewhere has ended
PICKED = 3  # in the key of an origin row, beside OriginKind: a session's picks
IDENTIFIERS_AHEAD = 512  # given to entries that wait for the window, at most
AHEAD_BYTES = 512 * 1024  # of their bodies, in memory
WILL_ORIGINS_MAX = 4_096  # wills reach a partition in any order, so each origin is kept, the newest ones


class Delivery:
    """What one partition does with messages and their acknowledgements."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._origins: dict[tuple[int, int], int] = {}
        self._will_origins: deque[int] = deque()
        self._picked: dict[int, PickedOrigins] = {}  # by group and publishing session, the longest silent first
        self._session_origins: dict[int, None] = {}  # publishing sessions of any partition, the longest silent first
        self._groups: dict[bytes, list[DurableSession]] = {}
        self._lazy: dict[int, DurableSession] = {}  # sessions with consumed entries not yet saved
        self._freed: dict[int, DurableSession] = {}  # sessions whose window has room since this round

    # --- restore

    def restore_origin(self, kind: int, sender: int, value: bytes) -> None:
        """Take over a sender's highest counter, or which picks came, from disk."""
        if kind == PICKED:
            self._picked[sender] = PickedOrigins(self._partition.settings.inbound_unreleased_max, value)
            return
        self._origins[kind, sender] = int.from_bytes(value, "big")
        if kind == OriginKind.WILL:
            self._will_origins.append(sender)
        elif kind == OriginKind.SESSION:
            self._session_origins[sender] = None

    def forget_sender(self, kind: int, sender: int) -> None:
        """The sender can never speak again: an edge's incarnation is dead, a session is deleted."""
        self._session_origins.pop(sender, None)
        if self._origins.pop((kind, sender), None) is not None:
            self._partition.delete(keys.origin_key(self._partition.number, kind, sender))

    def forget_dead_edges(self, live: set[int]) -> None:
        """Forget every edge's incarnation but these: the others died while this partition was not served."""
        for kind, sender in sorted(self._origins):
            if kind == OriginKind.EDGE and sender not in live:
                self.forget_sender(kind, sender)

    # --- shared groups

    def join_group(self, share: bytes, session: DurableSession) -> int:
        """Add a member and return how many there are."""
        members = self._groups.setdefault(share, [])
        if session not in members:
            members.append(session)
        return len(members)

    def leave_group(self, share: bytes, session: DurableSession) -> int:
        """Remove a member and return how many are left."""
        members = self._groups.get(share, [])
        if session in members:
            members.remove(session)
        if not members:
            self._groups.pop(share, None)
        return len(members)

    # --- in

    def publish(self, message: PublishMessage, node: str, incarnation: int) -> None:
        """Take one message from an edge; the acknowledgement leaves when it is committed."""
        partition = self._partition
        if self.is_repeat(message, node, incarnation):
            partition.count("repeats")
            self.acknowledge(message, node, ReasonCode.SUCCESS)
            return
        targets = list(self._targets(message))
        refusal = self._refusal(message, targets)
        if refusal:
            partition.count("refused_queue_full" if targets else "refused_no_member")
            self.acknowledge(message, node, refusal)
            return
        if message.qos:
            self._remember(message, node, incarnation)
        deadline = NEVER if message.expiry_s == NO_EXPIRY else partition.deadline_in(message.expiry_s)
        body = self._shared_body(message, targets)
        for session, subscription, identifiers in targets:
            self._enqueue(session, message, subscription, identifiers, deadline, body, node)
        if partition.ledger is not None:
            partition.ledger.taken(message, node)
        self.acknowledge(message, node, ReasonCode.SUCCESS)

    def is_repeat(self, message: PublishMessage, node: str, incarnation: int) -> bool:
        """True if a message of this origin was taken before (never at QoS 0, which is sent once)."""
        if not message.qos:
            return False
        sender, counter = _origin(message, node, incarnation)
        if _is_session_pick(message):
            return sender in self._picked and self._picked[sender].has(counter)
        return counter <= self._origins.get((message.origin_kind, sender), 0)

    def _remember(self, message: PublishMessage, node: str, incarnation: int) -> None:
        partition, kind = self._partition, message.origin_kind
        sender, counter = _origin(message, node, incarnation)
        if _is_session_pick(message):
            self._remember_pick(sender, counter)
            return
        self._origins[kind, sender] = counter
        partition.put(keys.origin_key(partition.number, kind, sender), counter.to_bytes(8, "big"))
        if kind == OriginKind.WILL:
            self._will_origins.append(sender)
            if len(self._will_origins) > WILL_ORIGINS_MAX:
                self.forget_sender(kind, self._will_origins.popleft())
        elif kind == OriginKind.SESSION:
            self._session_origins.pop(sender, None)
            self._session_origins[sender] = None
            if len(self._session_origins) > SESSION_ORIGINS_MAX:
                partition.count("origins_forgotten")
                self.forget_sender(kind, next(iter(self._session_origins)))

    def _remember_pick(self, sender: int, counter: int) -> None:
        partition = self._partition
        picked = self._picked.pop(sender, None) or PickedOrigins(partition.settings.inbound_unreleased_max)
        self._picked[sender] = picked
        picked.add(counter)
        partition.put(keys.origin_key(partition.number, PICKED, sender), picked.value())
        if len(self._picked) > SESSION_ORIGINS_MAX:
            partition.count("origins_forgotten")
            oldest = next(iter(self._picked))
            del self._picked[oldest]
            partition.delete(keys.origin_key(partition.number, PICKED, oldest))

    def acknowledge(self, message: PublishMessage, node: str, reason_code: int) -> None:
        """Tell the edge that this partition has finished a message, behind the operation being built."""
        if message.tag:
            record = encode_publish_ack(message.tag, self._partition.number, reason_code)
            self._partition.emit(node, FrameKind.PUBLISH_ACK, record)

    def _targets(self, message: PublishMessage) -> Iterable[tuple[DurableSession, Subscription, bytes]]:
        """Yield (session, merged subscription, its identifiers encoded): one copy per session [MQTT-3.3.4-2]."""
        if message.share:
            member = self._pick(message.share, message.qos)
            if member is not None:  # else a QoS 1/2 message is refused: there may be a member elsewhere
                subscription = member.subscriptions["$share/" + message.share.decode()]
                yield member, subscription, _identifiers((subscription,))
            return
        matches: list[tuple[DurableSession, Subscription]] = self._partition.trie.match(message.topic.decode())
        if not matches:
            return
        if len(matches) == 1:
            session, subscription = matches[0]
            if not (subscription.no_local and session.number == message.session):  # [MQTT-3.8.3-3]
                yield session, subscription, _identifiers((subscription,))
            return
        merged: dict[int, tuple[DurableSession, list[Subscription]]] = {}
        for session, subscription in matches:
            if subscription.no_local and session.number == message.session:
                continue
            merged.setdefault(session.number, (session, []))[1].append(subscription)
        for session, subscriptions in merged.values():
            best = max(subscriptions, key=lambda subscription: subscription.qos)
            if any(subscription.retain_as_published for subscription in subscriptions):
                best = Subscription(best.topic_filter, best.qos, False, True)
            yield session, best, _identifiers(subscriptions)

    def _pick(self, share: bytes, qos: int) -> DurableSession | None:
        """Choose a member: the next one that is connected with room, else, for QoS 1/2, the next one at all."""
        members = self._groups.get(share)
        if not members:
            if qos == 0:
                self._partition.count("dropped_no_member")
            return None
        for index, member in enumerate(members):
            if member.window_open and member.caught_up:
                members.append(members.pop(index))
                return member
        if qos == 0:
            self._partition.count("dropped_no_member")
            return None
        members.append(members.pop(0))
        return members[-1]

    def _refusal(self, message: PublishMessage, targets: list[tuple[DurableSession, Subscription, bytes]]) -> int:
        if message.share and not targets and message.qos:
            return ReasonCode.QUOTA_EXCEEDED
        if self._partition.settings.queue_full != "refuse" or not message.qos:
            return 0
        size = len(message.payload) + len(message.topic) + len(message.properties) + ENTRY_OVERHEAD_BYTES
        if any(self._overfull(session, size) for session, subscription, _ in targets if subscription.qos):
            return ReasonCode.QUOTA_EXCEEDED
        return 0

    def _overfull(self, session: DurableSession, size: int) -> bool:
        settings = self._partition.settings
        return session.queued >= settings.queue_messages_max or session.queue_bytes + size > settings.queue_bytes_max

    def _shared_body(self, message: PublishMessage, targets: list[tuple[DurableSession, Subscription, bytes]]) -> int:
        """Store a body once for several sessions, or in pieces when it is large; return its id, 0 for inline."""
        partition = self._partition
        settings = partition.settings
        size = len(message.payload)
        keepers = sum(1 for _, subscription, _ in targets if min(subscription.qos, message.qos))
        if not keepers or size <= settings.inline_bytes_max or (keepers == 1 and size <= settings.piece_bytes):
            return 0
        return self.store_body(message.payload, keepers)

    def _enqueue(
        self,
        session: DurableSession,
        message: PublishMessage,
        subscription: Subscription,
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
                self._overtake(session, message.topic)  # not held back itself: an older retained copy may not follow
            self._push_qos0(session, message, retain, properties)
            return
        if message.retain and not message.share:
            if (message.origin_kind, message.origin_a, message.origin_b or message.tag) in session.retained_origins:
                self._partition.count("retained_twins")  # its retained copy went first
                if ledger is not None:
                    ledger.not_queued(message, node, session.number, "retained copy went first")
                return
            if session.reads is not None:
                session.reads.came_live(message.topic)
        entry = Entry(
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
        if ledger is not None:
            ledger.matched(session.number, entry.session_seq)
        self.enqueue(session, entry)

    def _overtake(self, session: DurableSession, topic: bytes) -> None:
        """A retained message goes out live at QoS 0: what is read or queued of the topic's older values must not."""
        if session.reads is not None:
            session.reads.came_live(topic)
        copy = session.waiting_copies.pop(topic, 0)
        if copy:
            session.overtaken.add(copy)

    def enqueue_copy(self, session: DurableSession, entry: Entry) -> None:
        """Append a retained copy; it leaves unless its topic's next value goes first."""
        self.enqueue(session, entry)
        if entry.state == STATE_QUEUED:
            session.waiting_copies[entry.topic] = entry.session_seq

    def enqueue(self, session: DurableSession, entry: Entry) -> None:
        """Append an entry (its session_seq is the session's next) to a session's queue, and push it if it may go."""
        partition = self._partition
        size = len(entry.topic) + len(entry.payload) + len(entry.properties) + ENTRY_OVERHEAD_BYTES
        while session.sizes and self._overfull(session, size):
            self._drop_oldest(session)
        session.next_seq += 1
        session.queue_bytes += size
        if session.window_open and session.caught_up:
            flight = session.begin(entry, size)
            session.push_seq = session.next_seq
            entry.packet_identifier = flight.packet_identifier
            entry.state = STATE_SENT
            self._push(session, entry, flight, dup=False)
        else:
            if session.edge and len(session.ready) == len(session.sizes) < READY_MAX:
                session.ready.append(entry)
            session.sizes.append(size)
        partition.put(keys.queue_key(partition.number, session.number, entry.session_seq), encode_entry(entry))

    def _drop_oldest(self, session: DurableSession) -> None:
        body = self._body_of(session, session.push_seq)
        if self._partition.ledger is not None:
            self._partition.ledger.dropped("dropped", session.number, session.push_seq, "queue full")
        session.drop_oldest_waiting()
        session.dropped += 1
        self._partition.count("dropped_queue_full")
        self._note_consumed(session, body)

    # --- out

    def _push_qos0(self, session: DurableSession, message: PublishMessage, retain: bool, properties: bytes) -> None:
        if not session.edge:
            return  # QoS 0 is pushed but never queued for the absent
        push = Push(
            session.number,
            session.owner_epoch,
            self._partition.epoch,
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
        )
        self._partition.push(session, encode_push(push))

    def _push(
        self, session: DurableSession, entry: Entry, flight: InFlight, *, dup: bool, settled: bool = False
    ) -> None:
        partition = self._partition
        expiry_s = NO_EXPIRY
        if entry.deadline != NEVER:
            expiry_s = max(0, (entry.deadline - partition.served_ms + 999) // 1000)
        payload = entry.payload
        if entry.body and not payload:
            payload = self.read_body(entry.body)
        push = Push(
            session.number,
            session.owner_epoch,
            partition.epoch,
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
        )
        partition.push(session, encode_push(push), settled=settled)

    def _push_pubrel(self, session: DurableSession, session_seq: int, flight: InFlight) -> None:
        push = Push(
            session.number,
            session.owner_epoch,
            self._partition.epoch,
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
        self.pump(session)

    def pump_freed(self) -> None:
        """Fill the windows that have room since this round; called before its operation is closed."""
        if self._freed:
            freed, self._freed = self._freed, {}
            for session in freed.values():
                if self._partition.sessions.get(session.number) is session:
                    self.pump(session)

    def pump(self, session: DurableSession) -> None:
        """Send what waits, in order, while the window has room; give identifiers to what comes next."""
        partition = self._partition
        while session.window_open:
            if not session.unsent:
                self._give(session)
            following = session.next_unsent()
            if following is None:
                return  # or written by the operation being built and not readable yet; the next event goes on
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
            while session.given and session.given[0][1] <= partition.released:
                session.given.popleft()
            settled = not session.given or session_seq < session.given[0][0]
            self._push(session, entry, flight, dup=dup, settled=settled)
        if session.sizes and session.edge and len(session.unsent) <= IDENTIFIERS_AHEAD // 2:
            self._give(session)

    def _give(self, session: DurableSession) -> None:
        """Give packet identifiers to the next entries of the queue, as one run of the session row."""
        partition = self._partition
        ahead = min(IDENTIFIERS_AHEAD, partition.settings.queue_messages_max // 4)
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
            if entry.deadline != NEVER and entry.deadline <= partition.served_ms:  # [MQTT-3.3.2-5]
                self._pass_over(session, entry, size)
                continue
            session.give(entry, size)
            wanted -= 1
        if session.push_seq > first:
            session.given.append((first, partition.building))
            partition.touch(session)

    def _drop_unsent(self, session: DurableSession, session_seq: int, entry: Entry) -> bool:
        """Drop an entry that must not leave any more; its identifier is free again."""
        event, count, reason = "expired", "dropped_expired", "message expiry"
        if session.waiting_copies.get(entry.topic) == session_seq:
            del session.waiting_copies[entry.topic]
        elif session_seq in session.overtaken:
            session.overtaken.discard(session_seq)
            event, count, reason = "dropped", "retained_overtaken", "a newer retained value went first"
        if event == "expired" and not 0 < entry.deadline <= self._partition.served_ms:  # [MQTT-3.3.2-5]
            return False
        if self._partition.ledger is not None:
            self._partition.ledger.dropped(event, session.number, session_seq, reason)
        session.consume(session_seq)
        self._partition.count(count)
        self._note_consumed(session, entry.body)
        return True

    def _pass_over(self, session: DurableSession, entry: Entry, size: int) -> None:
        """An entry expired while it waited without an identifier."""
        if self._partition.ledger is not None:
            self._partition.ledger.dropped("expired", session.number, entry.session_seq, "message expiry")
        session.forget(entry.session_seq, size)
        passed_over = session.identifiers.allocate()  # each message counts up, as at brokers that number when queueing
        if passed_over is not None:
            session.identifiers.release(passed_over)
        self._partition.count("dropped_expired")
        self._note_consumed(session, entry.body)

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
        partition.set_timer(deadline, "unhold", str(session.number))

    def unhold(self, session: DurableSession, read: int) -> None:
        """A retained read ended."""
        if session.reads is not None:
            session.reads.end(read)
            if not session.reads:
                session.reads = None
        if not session.held:
            self.pump(session)

    def hold_expired(self, session: DurableSession) -> None:
        """Live messages have waited long enough for one read; for later ones they go on waiting."""
        if session.reads is not None:
            session.reads.expire(self._partition.served_ms)
        if not session.held:
            self.pump(session)

    def push_retained(self, session: DurableSession, message: RetainedMessage, retain: bool) -> None:
        """Send a QoS 0 retained copy to the connection, if there is one."""
        if session.edge:
            push = Push(
                session.number,
                session.owner_epoch,
                self._partition.epoch,
                0,
                0,
                0,
                message.topic.encode(),
                message.payload,
                message.properties,
                retain,
                expiry_s=message.expiry_s,
            )
            self._partition.push(session, encode_push(push))

    def _remember_live(self, session: DurableSession, message: PublishMessage) -> None:
        """A retained message comes live: its register may be written only later, in another partition."""
        live = session.live_retained
        live.pop(message.topic, None)
        live[message.topic] = message.origin_kind, message.origin_a, message.origin_b or message.tag
        if len(live) > LIVE_RETAINED_MAX:
            del live[next(iter(live))]

    def is_overtaken(self, session: DurableSession, message: RetainedMessage) -> bool:
        """Whether a retained copy must not go out, because the session was sent another message of the topic live.

        Either the copy is older, its register not having been written yet when it was read, or it is newer, and comes
        live as well: what brought the other one still stands (``forget_live``).
        """
        known = session.live_retained.get(message.topic.encode())
        return known is not None and known != (message.origin_kind, message.origin_a, message.origin_b)

    def forget_live(self, session: DurableSession) -> None:
        """A subscription ends: what it brought says nothing any more of what is still to come."""
        session.live_retained.clear()

    def remember_retained(self, session: DurableSession, message: RetainedMessage) -> None:
        """A retained copy goes out: a live copy of the same origin that comes later is its twin."""
        origins = session.retained_origins
        origins[message.origin_kind, message.origin_a, message.origin_b] = None
        if len(origins) > RETAINED_ORIGINS_MAX:
            del origins[next(iter(origins))]

    def drop_queue(self, session: DurableSession) -> None:
        """Delete every row of a session's queue; the session is being deleted."""
        partition = self._partition
        for session_seq, flight in session.inflight.items():
            if flight.state != STATE_RELEASED:
                self.release_body(flight.body)
                partition.delete(keys.queue_key(partition.number, session.number, session_seq))
            if flight.stored:
                partition.delete(keys.inflight_key(partition.number, session.number, session_seq))
        for session_seq in range(session.push_seq, session.next_seq):
            self.release_body(self._body_of(session, session_seq))
            partition.delete(keys.queue_key(partition.number, session.number, session_seq))
        session.inflight.clear()
        session.sizes.clear()
        session.unbind()

    # --- acknowledged by the client

    def acknowledged(self, ack: PushAck) -> None:
        """Take a PUBACK, PUBREC or PUBCOMP of the connection that owns the session now."""
        partition = self._partition
        session = partition.sessions.get(ack.session)
        if session is None or ack.owner_epoch != session.owner_epoch:
            partition.count("stale_acks")
            return
        flight = session.inflight.get(ack.session_seq)
        if flight is None or (ack.packet_type == 4) != (flight.qos == 1):
            return  # a repeat of one that is recorded already, or not what this message is finished with
        if ack.packet_type == 7 and flight.state != STATE_RELEASED:
            return
        if ack.packet_type == 5 and ack.reason_code < 0x80:
            if flight.state != STATE_RELEASED:
                session.received(flight)
                partition.put(
                    keys.inflight_key(partition.number, session.number, ack.session_seq),
                    pack(InflightRow(flight.packet_identifier, STATE_RELEASED, flight.qos)),
                )
                self.release_body(flight.body)
                partition.delete(keys.queue_key(partition.number, session.number, ack.session_seq))
            self._push_pubrel(session, ack.session_seq, flight)
            return
        body = flight.body if flight.state != STATE_RELEASED else 0
        session.consume(ack.session_seq)
        self._note_consumed(session, body)
        self._freed[session.number] = session

    def _note_consumed(self, session: DurableSession, body: int) -> None:
        if body:
            self.release_body(body)
            self.save_acks(session)  # no row may outlive the body that it names
        elif len(session.acked_rows) >= self._partition.settings.acks_per_row:
            self.save_acks(session)
        elif session.number not in self._lazy:
            self._lazy[session.number] = session
            if len(self._lazy) == 1:
                partition = self._partition
                partition.set_timer(partition.deadline_in(partition.settings.ack_delay_s), "save_acks", "")

    def save_acks(self, session: DurableSession) -> None:
        """Write the session's cumulative acknowledgement and delete the rows it covers."""
        partition = self._partition
        for session_seq in session.acked_rows:
            partition.delete(keys.queue_key(partition.number, session.number, session_seq))
            if session_seq in session.stored_rows:
                partition.delete(keys.inflight_key(partition.number, session.number, session_seq))
        if partition.ledger is not None:
            partition.ledger.finished(session.number, session.acked_rows)
        session.acked_rows.clear()
        session.stored_rows.clear()
        partition.touch(session)
        self._lazy.pop(session.number, None)

    def save_all_acks(self) -> None:
        """Save what has waited for ``ack_delay_s``."""
        for number in sorted(self._lazy):
            session = self._lazy[number]
            if session.acked_rows:
                self.save_acks(session)
        self._lazy.clear()

    def forget_session(self, session: DurableSession) -> None:
        """The session is deleted: no acknowledgement of it is pending any more."""
        self._lazy.pop(session.number, None)
        for share in [share for share, members in self._groups.items() if session in members]:
            self.leave_group(share, session)

    # --- shared bodies

    def store_body(self, payload: bytes, references: int) -> int:
        """Write a body once, in pieces, for so many rows that will name it; return its id."""
        partition = self._partition
        body = partition.meta.next_body
        partition.meta.next_body += 1
        step = partition.settings.piece_bytes
        for piece, start in enumerate(range(0, len(payload), step)):
            partition.put(keys.body_key(partition.number, body, piece), payload[start : start + step])
        partition.body_references[body] = references
        return body

    def read_body(self, body: int) -> bytes:
        pieces = []
        partition = self._partition
        for piece in range(1 << 16):
            value = partition.get(keys.body_key(partition.number, body, piece))
            if value is None:
                break
            pieces.append(value)
        return b"".join(pieces)

    def _body_of(self, session: DurableSession, session_seq: int) -> int:
        """Return the id of the shared body that a waiting entry names, 0 for none."""
        partition = self._partition
        if not partition.body_references:
            return 0
        value = partition.get(keys.queue_key(partition.number, session.number, session_seq))
        return decode_entry(session_seq, value).body if value is not None else 0

    def release_body(self, body: int) -> None:
        partition = self._partition
        if body not in partition.body_references:
            return
        partition.body_references[body] -= 1
        if partition.body_references[body] == 0:
            del partition.body_references[body]
            for piece in range(1 << 16):
                key = keys.body_key(partition.number, body, piece)
                if partition.get(key) is None:
                    break
                partition.delete(key)


@lru_cache(maxsize=4096)
def _sender(name: str, number: int) -> int:
    """Return 64 bits that stand for an edge's incarnation (unique only with its name), or for one will."""
    return int.from_bytes(blake2b(f"{number} {name}".encode(), digest_size=8).digest(), "big")


def _origin(message: PublishMessage, node: str, incarnation: int) -> tuple[int, int]:
    """Return (sender, counter) of a message."""
    if message.origin_kind == OriginKind.EDGE:
        return _sender(node, incarnation), message.tag
    # A shared group's pick may meet the ordinary copy of the same message here: each has its own memory.
    if message.origin_kind == OriginKind.WILL:
        return _sender(f"{message.origin_a} {message.share.decode()}", message.origin_b), 1
    if message.share:
        return _sender(message.share.decode(), message.origin_a), message.origin_b
    return message.origin_a, message.origin_b


def _is_session_pick(message: PublishMessage) -> bool:
    """Whether it is a QoS 2 message's copy for a shared group: its session's picks come in any order."""
    return bool(message.share) and message.origin_kind == OriginKind.SESSION


def edge_sender(edge: str, incarnation: int) -> int:
    """Return the sender number of an edge's incarnation."""
    return _sender(edge, incarnation)


def _identifiers(subscriptions: Iterable[Subscription]) -> bytes:
    """Return the Subscription Identifier properties of a copy, all of them [MQTT-3.3.4-4]."""
    encoded = b""
    for subscription in subscriptions:
        value = subscription.identifier
        if not value:
            continue
        encoded += _SUBSCRIPTION_IDENTIFIER
        while value > 0x7F:
            encoded += bytes((value & 0x7F | 0x80,))
            value >>= 7
        encoded += bytes((value,))
    return encoded
