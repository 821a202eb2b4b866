"""Copies for shared groups that a durable member did not acknowledge before its session ended: to another member.

The operation that ends the session writes each of them as a row of its own, so nothing is lost with this node. An edge
is asked where a copy goes; that is recorded before anything is sent there, so every repeat goes there too and is known
by its origin. The row goes when the edge says that a member has it. What was sent at QoS 2 stays with the member that
ended [MQTT-4.8.2-5], what it refused was finished by that [MQTT-4.8.2-6].
Left to others: who the other members are (``edge/publishing/redispatch.py``). Source: MQTT 5.0 section 4.8.2;
docs/adr/0016.
"""

from collections import deque
from collections.abc import Callable

from storage.messages.bodies import Bodies
from storage.messages.groups import group_words
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from storage.state.rows import NEVER, STATE_RELEASED, Entry, HandedRow, decode_entry, pack, unpack
from storage.state.session_window import InFlight
from storage.state.timers import RedispatchAgain
from wire.messages.batches import NO_EXPIRY
from wire.messages.redispatch import HOPS_MAX, RedispatchAnswer, RedispatchOrder, SharePick, hops_of
from wire.messages.wills import Will

__all__ = ["RedispatchQueue"]

MESSAGES_MAX = 20_000  # that wait, per partition
BYTES_MAX = 64 * 1024 * 1024  # of their rows
MESSAGE_BYTES_MAX = 4 * 1024 * 1024  # it travels to an edge in one frame
OUT_MAX = 32  # sent at once
OUT_BYTES_MAX = 4 * 1024 * 1024  # of them, beside one
SPAN_MAX = 256  # between the numbers of those, below what a destination tells apart
REPEAT_S = 1.0


class RedispatchQueue:
    """Messages of one partition that go to another member of their group.

    Args:
        partition: The one whose sessions end.
        bodies: Its shared bodies.
        live: (tier, number): some live node's name; "" if there is none.
        left: Is told the share of each copy that leaves a member.
    """

    def __init__(
        self, partition: Partition, bodies: Bodies, live: Callable[[str, int], str], left: Callable[[bytes], None]
    ) -> None:
        self._partition = partition
        self._left = left
        self._bodies = bodies
        self._live = live
        self._edge = ""  # to which they are sent: one, so that they stay in order
        self._sizes: dict[int, int] = {}  # of all rows, by number
        self._bytes = 0
        self._waiting: deque[int] = deque()
        self._picks: dict[int, SharePick] = {}
        self._out: dict[int, None] = {}  # sent, ascending
        self._out_bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    # --- in

    def take(self, session: DurableSession, inflight: dict[int, InFlight], waiting: list[tuple[int, int]]) -> None:
        """Rows of a session that ends are deleted with this operation: keep what another member may get, in order.

        Args:
            session: Whose they are.
            inflight: By session_seq, ascending.
            waiting: (session_seq, size) of those behind.
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

    def keep(self, entry: Entry, size: int) -> None:
        """Write a group's copy as a row of its own; one that expired, or is too large or too many, is gone."""
        partition = self._partition
        if 0 < entry.deadline <= partition.served_ms:  # [MQTT-3.3.2-5]
            partition.count("dropped_expired")
            partition.note("drop", "expired", topic=entry.topic, detail=group_words(entry.share))
            return
        if size > MESSAGE_BYTES_MAX:
            partition.count("shares_dropped_large")
            partition.note("drop", "too_large", topic=entry.topic, detail=group_words(entry.share))
            return
        if len(self._sizes) >= MESSAGES_MAX or self._bytes + size > BYTES_MAX:
            partition.count("shares_dropped_full")
            partition.note("drop", "queue_full", topic=entry.topic, detail=group_words(entry.share))
            return
        properties = entry.properties[: len(entry.properties) - entry.own_bytes]
        qos, retain = entry.published & 3, bool(entry.published & 4)
        hops = min(hops_of(entry.origin_kind, entry.origin_a), HOPS_MAX - 1)
        row = HandedRow(
            entry.share, entry.topic, entry.payload, qos, retain, properties, entry.deadline, entry.body, hops
        )  # fmt: skip
        if entry.body:
            partition.body_references[entry.body] = partition.body_references.get(entry.body, 0) + 1
        number = partition.meta.next_handed
        partition.meta.next_handed += 1
        partition.put(keys.handed_key(partition.number, number), pack(row))
        self._left(entry.share)
        self._add(number, size)

    def _add(self, number: int, size: int) -> None:
        self._sizes[number] = size
        self._bytes += size
        self._waiting.append(number)

    def restore(self, key: bytes, value: bytes) -> None:
        """Take over a message, or where it goes, from disk, in key order."""
        partition, number = self._partition, int.from_bytes(key[3:11], "big")
        if len(key) > 11:
            self._picks[number] = unpack(SharePick, value)
            return
        row = unpack(HandedRow, value)
        if row.body:
            partition.body_references[row.body] = partition.body_references.get(row.body, 0) + 1
        self._add(number, len(value) + self._bodies.size(row.body))

    # --- out

    def send_some(self) -> None:
        """Send what may be under way; each repeats until it is answered."""
        span = min(SPAN_MAX, self._partition.settings.inbound_unreleased_max)
        while self._waiting and len(self._out) < OUT_MAX and self._out_bytes < OUT_BYTES_MAX:
            number = self._waiting[0]
            if self._out and number - next(iter(self._out)) >= span:
                return
            self._waiting.popleft()
            self._out[number] = None
            self._out_bytes += self._sizes[number]
            self._send(number)

    def _send(self, number: int) -> bool:
        if not self._tell(number):
            return False
        partition = self._partition
        partition.set_timer(partition.deadline_in(REPEAT_S), RedispatchAgain(number))
        return True

    def again(self, number: int) -> None:
        """A message was not redispatched yet: say it again, same origin; where one expired, the next has its place."""
        if number in self._out and not self._send(number):
            self.send_some()

    def _tell(self, number: int) -> bool:
        partition = self._partition
        value = partition.get(keys.handed_key(partition.number, number))
        row = unpack(HandedRow, value) if value is not None else None
        if row is None or 0 < row.deadline <= partition.served_ms:  # [MQTT-3.3.2-5]
            partition.count("dropped_expired")
            partition.note("drop", "expired", topic=row.topic if row is not None else b"", detail="of a group")
            self._finish(number)
            return False
        expiry_s = NO_EXPIRY if row.deadline == NEVER else (row.deadline - partition.served_ms + 999) // 1000
        payload = self._bodies.read(row.body) if row.body else row.payload
        message = Will(row.topic.decode(), payload, row.qos, row.retain, row.properties, 0, expiry_s)
        pick = self._picks.get(number)
        self._edge = self._edge or self._live("edge", partition.number)
        order = RedispatchOrder(0, partition.number, partition.epoch, number, row.share, message, pick, row.hops)
        partition.tell(self._edge, order)
        return True

    def edge_dead(self, edge: str) -> None:
        """Another edge takes over what this one was handed."""
        if edge != self._edge:
            return
        self._edge = ""
        for number in list(self._out):
            self._tell(number)
        self.send_some()

    def answered(self, answer: RedispatchAnswer, node: str) -> None:
        """Record where a message goes, or forget it: a member has it."""
        number, pick = answer.number, answer.pick
        if number not in self._out or node != self._edge:
            return
        if pick is None:
            self._partition.count("shares_settled")
            self._finish(number)
            self.send_some()
            return
        known = self._picks.get(number)
        if known is None or pick.attempt > known.attempt:
            self._picks[number] = pick
            self._partition.put(keys.handed_pick_key(self._partition.number, number), pack(pick))
        if not self._tell(number):
            self.send_some()

    def _finish(self, number: int) -> None:
        partition = self._partition
        key = keys.handed_key(partition.number, number)
        value = partition.get(key)
        if value is not None:
            self._bodies.release(unpack(HandedRow, value).body)
            partition.delete(key)
        if self._picks.pop(number, None) is not None:
            partition.delete(keys.handed_pick_key(partition.number, number))
        size = self._sizes.pop(number)
        self._bytes -= size
        del self._out[number]
        self._out_bytes -= size
