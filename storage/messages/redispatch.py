"""Redispatch of shared groups' copies that a durable member did not acknowledge before its session ended.

The operation that ends the session writes each copy as a row of its own, so none is lost with this node. An edge picks
the new member. The pick is recorded before the copy is sent, so every repeat goes to the same member and is detected
by its origin. The row is deleted when the edge confirms the delivery. Copies sent at QoS 2 stay with the ended member
[MQTT-4.8.2-5]; copies that it refused are finished [MQTT-4.8.2-6].

Elsewhere: the choice among other members (``edge/publishing/redispatch.py``). Source: MQTT 5.0 section 4.8.2;
docs/adr/0016.
"""

from collections.abc import Callable

from storage.messages.bodies import Bodies
from storage.messages.groups import describe_group
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.order_window import REFUSED_AGAIN_S, OrderBounds, OrderWindow
from storage.state.partition import Partition
from storage.state.rows import NEVER, STATE_RELEASED, QueueEntry, SharedMessageRow, decode_entry, pack, unpack
from storage.state.session_window import InFlight
from storage.state.timers import RedispatchAgain
from wire.messages.batches import NO_EXPIRY
from wire.messages.redispatch import HOPS_MAX, RedispatchOrder, RedispatchReply, SharePick, hops_of
from wire.messages.wills import SessionWill

__all__ = ["RedispatchQueue"]

MESSAGES_MAX = 20_000  # pending, per partition
BYTES_MAX = 64 * 1024 * 1024  # of their rows
MESSAGE_BYTES_MAX = 4 * 1024 * 1024  # a copy travels to an edge in one frame
IN_FLIGHT_MAX = 32
IN_FLIGHT_BYTES_MAX = 4 * 1024 * 1024  # of all of them; a single copy may exceed it
SPAN_MAX = 256  # between their numbers; below the window in which a destination detects repeats


class RedispatchQueue:
    """Messages of one partition that go to another member of their group.

    Args:
        partition: The partition of the ended sessions.
        bodies: Its shared bodies.
        live: (tier, number): a live node's name; "" if there is none.
        left: Called with the share of each copy that leaves a member.

    Attributes:
        orders: RedispatchOrders to edges.
    """

    def __init__(
        self, partition: Partition, bodies: Bodies, live: Callable[[str, int], str], left: Callable[[bytes], None]
    ) -> None:
        self._partition = partition
        self._left = left
        self._bodies = bodies
        self._picks: dict[int, SharePick] = {}
        span = min(SPAN_MAX, partition.settings.inbound_unreleased_max)
        self.orders = OrderWindow(
            OrderBounds(IN_FLIGHT_MAX, IN_FLIGHT_BYTES_MAX, span), lambda: live("edge", partition.number), self._send
        )

    def __len__(self) -> int:
        return len(self.orders)

    # --- incoming copies

    def take(self, session: DurableSession, inflight: dict[int, InFlight], waiting: list[tuple[int, int]]) -> None:
        """Keep the copies of a session that ends for other members, in order; its rows are deleted with this operation.

        Args:
            session: The session that ends.
            inflight: In-flight entries by session_seq, ascending.
            waiting: (session_seq, size) of the queued entries after them.
        """
        if not session.shared:
            return
        for session_seq, flight in inflight.items():
            if flight.state != STATE_RELEASED and not (flight.qos == 2 and flight.sent):
                self._take(session, session_seq, flight.size)
        for session_seq, size in waiting:
            self._take(session, session_seq, size)
        self.send_some()

    def _take(self, session: DurableSession, session_seq: int, size: int) -> None:
        partition = self._partition
        value = partition.get(keys.queue_key(partition.number, session.number, session_seq))
        entry = decode_entry(session_seq, value) if value is not None else None
        if entry is not None and entry.share and not entry.handed:
            self.keep(entry, size)

    def keep_will(self, will: SessionWill, share: bytes, properties: bytes) -> None:
        """Write a group's copy of a will; ``send_some`` sends it."""
        partition = self._partition
        deadline = NEVER if will.expiry_s == NO_EXPIRY else partition.deadline_in(will.expiry_s)
        entry = QueueEntry(0, will.topic.encode(), will.payload, properties, deadline=deadline, share=share)
        entry.published = will.qos | 4 * will.retain
        self._write(entry, len(entry.topic) + len(entry.payload) + len(properties))

    @property
    def is_filling(self) -> bool:
        """Whether wills should wait until copies have gone to members."""
        return len(self.orders) >= MESSAGES_MAX // 2 or self.orders.octets >= BYTES_MAX // 2

    def keep(self, entry: QueueEntry, size: int) -> None:
        """Store a group's copy that leaves a member."""
        if self._write(entry, size):
            self._left(entry.share)

    def _write(self, entry: QueueEntry, size: int) -> bool:
        """Write a group's copy as a row; return False, counted, if it expired, is too large or exceeds a bound."""
        partition = self._partition
        if 0 < entry.deadline <= partition.served_ms:  # [MQTT-3.3.2-5]
            partition.count("dropped_expired")
            partition.note("drop", "expired", topic=entry.topic, detail=describe_group(entry.share))
            return False
        if size > MESSAGE_BYTES_MAX:
            partition.count("shares_dropped_large")
            partition.note("drop", "too_large", topic=entry.topic, detail=describe_group(entry.share))
            return False
        if len(self.orders) >= MESSAGES_MAX or self.orders.octets + size > BYTES_MAX:
            partition.count("shares_dropped_full")
            partition.note("drop", "queue_full", topic=entry.topic, detail=describe_group(entry.share))
            return False
        properties = entry.properties[: len(entry.properties) - entry.own_bytes]
        qos, retain = entry.published & 3, bool(entry.published & 4)
        hops = min(hops_of(entry.origin_kind, entry.origin_a), HOPS_MAX - 1)
        row = SharedMessageRow(
            entry.share, entry.topic, entry.payload, qos, retain, properties, entry.deadline, entry.body, hops
        )  # fmt: skip
        if entry.body:
            partition.body_references[entry.body] = partition.body_references.get(entry.body, 0) + 1
        number = partition.meta.next_handed
        partition.meta.next_handed += 1
        partition.put(keys.handed_key(partition.number, number), pack(row))
        self.orders.add(number, size)
        return True

    def restore(self, key: bytes, value: bytes) -> None:
        """Restore a message, or its pick, from disk, in key order."""
        partition, number = self._partition, int.from_bytes(key[3:11], "big")
        if len(key) > 11:
            self._picks[number] = unpack(SharePick, value)
            return
        row = unpack(SharedMessageRow, value)
        if row.body:
            partition.body_references[row.body] = partition.body_references.get(row.body, 0) + 1
        self.orders.restore(number, len(value) + self._bodies.size(row.body))

    # --- outgoing orders

    def send_some(self) -> None:
        """Send orders up to the in-flight bounds."""
        self.orders.send_some()

    def send_again(self, number: int) -> None:
        """Send a message again that no edge could redispatch; if it expired, the next one takes its place."""
        self.orders.send_again(number)

    def _send(self, number: int, edge: str) -> bool:
        partition = self._partition
        value = partition.get(keys.handed_key(partition.number, number))
        row = unpack(SharedMessageRow, value) if value is not None else None
        if row is None or 0 < row.deadline <= partition.served_ms:  # [MQTT-3.3.2-5]
            partition.count("dropped_expired")
            partition.note("drop", "expired", topic=row.topic if row is not None else b"", detail="of a group")
            self._finish(number)
            return False
        expiry_s = NO_EXPIRY if row.deadline == NEVER else (row.deadline - partition.served_ms + 999) // 1000
        payload = self._bodies.read(row.body) if row.body else row.payload
        message = SessionWill(row.topic.decode(), payload, row.qos, row.retain, row.properties, 0, expiry_s)
        pick = self._picks.get(number)
        order = RedispatchOrder(0, partition.number, partition.epoch, number, row.share, message, pick, row.hops)
        partition.send_control(edge, order)
        return True

    def answered(self, answer: RedispatchReply, node: str) -> None:
        """Record the pick of a message, delete a delivered one, or schedule a retry."""
        number, pick, partition = answer.number, answer.pick, self._partition
        if not self.orders.is_at(number, node):
            return
        if answer.again:
            partition.set_timer(partition.deadline_in(REFUSED_AGAIN_S), RedispatchAgain(number))
            return
        if pick is None:
            partition.count("shares_settled")
            self._finish(number)
            self.send_some()
            return
        known = self._picks.get(number)
        if known is None or pick.attempt > known.attempt:
            self._picks[number] = pick
            partition.put(keys.handed_pick_key(partition.number, number), pack(pick))
        self.orders.send_again(number)

    def _finish(self, number: int) -> None:
        partition = self._partition
        key = keys.handed_key(partition.number, number)
        value = partition.get(key)
        if value is not None:
            self._bodies.release(unpack(SharedMessageRow, value).body)
            partition.delete(key)
        if self._picks.pop(number, None) is not None:
            partition.delete(keys.handed_pick_key(partition.number, number))
        self.orders.finish(number)
