"""The pump of every bridge: which record a sink gets next, and when a source is acknowledged.

A source offers messages, the rules have made records of each, the sink answers each record with done, retry or reject.
A message is finished, and its source acknowledged, when each of its records was taken by the sink, or by the dead
letter after the sink had rejected it. Records of one lane are sent in the order of their messages: one at a time, or
several where the sink keeps their order itself. What is to be tried again waits with its lane, for ever unless
``give_up_s``. Pure logic; time and randomness are passed in.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from gateways.bridges.message import BridgeMessage, SinkRecord
from gateways.retry_delay import RetryDelay

__all__ = ["BridgePump", "DeadLetter", "PumpBounds", "SinkDelivery"]


WINDOWS_MAX = 2  # by bytes, of a broker that sends more than Receive Maximum, or has none (3.1.1)


@dataclass(frozen=True, slots=True)
class PumpBounds:
    """Bounds of one pump.

    Attributes:
        messages, size_bytes: Unfinished messages. A source is not read above either.
        give_up_s: A record that was tried for so long is rejected; 0: never.
        pipelined: The sink keeps the order of a lane: several of its records may be at the sink.
    """

    messages: int = 1024
    size_bytes: int = 64 * 1024 * 1024
    give_up_s: float = 0.0
    pipelined: bool = False


@dataclass(slots=True)
class SinkDelivery:
    """One record that a sink has, or gets next."""

    token: int  # grows with the order of messages
    record: SinkRecord
    reference: int  # of its message
    first_tried: float = -math.inf
    at_sink: bool = False
    reason: str = ""  # why the sink rejected it


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A rejected record on its way to the dead letter."""

    token: int
    record: SinkRecord
    reason: str


class _Lane:
    """Records that keep their order."""

    __slots__ = ("at_sink", "blocked_until", "delay", "queued", "waiting")

    def __init__(self, random: Random) -> None:
        self.waiting: list[int] = []  # tokens, a heap: what is tried again goes to its old place
        self.at_sink = 0
        self.blocked_until = -math.inf
        self.delay = RetryDelay(random)
        self.queued = False  # stands in the pump's queue of lanes


class BridgePump:
    """Unfinished messages of one direction of a bridge.

    Attributes:
        counts: Messages and records by what became of them.
        retry_s: The latest delay, in seconds; 0 when the latest record was taken.
    """

    def __init__(self, bounds: PumpBounds, random: Random) -> None:
        self.counts: Counter[str] = Counter()
        self.retry_s = 0.0
        self._bounds, self._random = bounds, random
        self._next_token = 0
        self._size = 0
        self._messages: dict[int, tuple[BridgeMessage, int]] = {}  # reference -> message, unfinished records
        self._sendings: dict[int, SinkDelivery] = {}
        self._lanes: dict[str, _Lane] = {}
        self._ready: deque[str] = deque()  # lanes that may send, in turn
        self._blocked: list[tuple[float, str]] = []  # a heap of lanes that wait for a time
        self._rejected: deque[int] = deque()
        self._late_rejected: list[tuple[float, int]] = []  # a heap: the dead letter failed, and is tried again
        self._dead_delay = RetryDelay(random)
        self._finished: deque[int] = deque()

    # What the source asks and says

    @property
    def has_room(self) -> bool:
        """Whether the source may offer one more message."""
        return len(self._messages) < self._bounds.messages and self._size < self._bounds.size_bytes

    @property
    def is_overfull(self) -> bool:
        """Whether a source that does not heed ``has_room`` has filled several windows: it must be stopped."""
        return self._size >= WINDOWS_MAX * self._bounds.size_bytes

    @property
    def is_half_free(self) -> bool:
        """Whether half of the window is free, by messages and by bytes."""
        return 2 * len(self._messages) <= self._bounds.messages and 2 * self._size <= self._bounds.size_bytes

    @property
    def open_messages(self) -> int:
        """Return how many messages are not finished."""
        return len(self._messages)

    @property
    def open_bytes(self) -> int:
        """Return their size."""
        return self._size

    @property
    def waiting(self) -> int:
        """Return how many records are not at the sink."""
        return sum(len(lane.waiting) for lane in self._lanes.values())

    def offer(self, reference: int, message: BridgeMessage, records: Sequence[SinkRecord]) -> None:
        """Take a message; without records it is finished at once."""
        assert reference not in self._messages, "a reference is used once"
        self.counts["received"] += 1
        if not records:
            self._finished.append(reference)
            return
        self._messages[reference] = (message, len(records))
        self._size += message.size
        for record in records:
            token = self._next_token
            self._next_token += 1
            self._sendings[token] = SinkDelivery(token, record, reference)
            lane = self._lanes.get(record.lane)
            if lane is None:
                lane = self._lanes[record.lane] = _Lane(self._random)
            heapq.heappush(lane.waiting, token)
            self._queue(record.lane, lane)

    def reject_message(self, reference: int, message: BridgeMessage, reason: str) -> None:
        """Take a message that the rules cannot make a record of: it goes to the dead letter."""
        record = SinkRecord(message.topic, message.payload, message.topic, message, message.key)
        self.counts["received"] += 1
        self._messages[reference] = (message, 1)
        self._size += message.size
        token = self._next_token
        self._next_token += 1
        self._sendings[token] = SinkDelivery(token, record, reference, reason=reason)
        self._count_rejected(token, reason)

    def restore(self, reference: int, message: BridgeMessage, record: SinkRecord, reason: str, now: float) -> int:
        """Take a message whose record a former process gave to the sink, or with a reason to the dead letter.

        Returns:
            The token by which that answers.
        """
        self.counts["restored"] += 1
        self._messages[reference] = (message, 1)
        self._size += message.size
        token = self._next_token
        self._next_token += 1
        self._sendings[token] = SinkDelivery(token, record, reference, now, at_sink=not reason, reason=reason)
        if not reason:
            self._lanes.setdefault(record.lane, _Lane(self._random)).at_sink += 1
        return token

    def origin_of(self, token: int) -> tuple[int, BridgeMessage]:
        """Return the message of a record that is not finished, and its reference."""
        reference = self._sendings[token].reference
        return reference, self._messages[reference][0]

    def finished(self) -> list[int]:
        """Return the messages that are finished since the last call: their source is acknowledged now."""
        finished = list(self._finished)
        self._finished.clear()
        return finished

    # What the sink asks and says

    def next_sending(self, now: float) -> SinkDelivery | None:
        """Return the record that the sink gets next, None if there is none now."""
        self._wake(now)
        while self._ready:
            name = self._ready.popleft()
            lane = self._lanes.get(name)
            if lane is None:
                continue  # discarded since
            lane.queued = False
            if not lane.waiting or lane.blocked_until > now or (lane.at_sink and not self._bounds.pipelined):
                continue
            sending = self._sendings[heapq.heappop(lane.waiting)]
            lane.at_sink += 1
            sending.at_sink = True
            if sending.first_tried == -math.inf:
                sending.first_tried = now
            if self._bounds.pipelined:
                self._queue(name, lane)
            return sending
        return None

    def next_deadline(self) -> float:
        """Return when a record or a dead letter is tried again; infinity if none waits for a time."""
        due = self._blocked[0][0] if self._blocked else math.inf
        return min(due, self._late_rejected[0][0]) if self._late_rejected else due

    def done(self, token: int) -> None:
        """Note that the sink has taken a record."""
        sending = self._leave_sink(token)
        if sending is not None:
            self.counts["delivered"] += 1
            self.retry_s = 0.0
            self._lanes[sending.record.lane].delay.reset()
            self._tidy(sending.record.lane)
            self._end(token)

    def retry(self, token: int, now: float, after_s: float | None = None, reason: str = "failed") -> None:
        """Note that a record must be tried again: after a delay with jitter, or as the other side says.

        Its lane waits with it. ``after_s`` 0 means at once: the sink was not at fault.
        """
        sending = self._leave_sink(token)
        if sending is None:
            return
        self.counts[f"retried_{reason}"] += 1
        if self._bounds.give_up_s and now - sending.first_tried >= self._bounds.give_up_s:
            self._tidy(sending.record.lane)
            self._count_rejected(token, "gave_up")
            return
        name = sending.record.lane
        lane = self._lanes[name]
        heapq.heappush(lane.waiting, token)
        if after_s is not None:
            delay = after_s
        elif lane.blocked_until > now:
            delay = lane.blocked_until - now  # several records of one failure: it counts once
        else:
            delay = lane.delay.next()
        self.retry_s = delay
        if delay > 0:
            lane.blocked_until = max(lane.blocked_until, now + delay)
            heapq.heappush(self._blocked, (lane.blocked_until, name))
        else:
            self._queue(name, lane)

    def reject(self, token: int, reason: str) -> None:
        """Note that the sink will never take a record: the dead letter gets it."""
        sending = self._leave_sink(token)
        if sending is not None:
            self._tidy(sending.record.lane)
            self._count_rejected(token, reason)

    # What the dead letter asks and says

    def next_dead_letter(self, now: float) -> DeadLetter | None:
        """Return a rejected record that no dead letter has yet, None if there is none now."""
        while self._late_rejected and self._late_rejected[0][0] <= now:
            self._rejected.append(heapq.heappop(self._late_rejected)[1])
        if not self._rejected:
            return None
        sending = self._sendings[self._rejected.popleft()]
        return DeadLetter(sending.token, sending.record, sending.reason)

    def dead_letter_done(self, token: int) -> None:
        """Note that the dead letter has taken a record: only now it counts as done."""
        if token in self._sendings:
            self.counts["dead_letter"] += 1
            self._dead_delay.reset()
            self._end(token)

    def dead_letter_dropped(self, token: int, reason: str) -> None:
        """Note that no dead letter will ever take a record: it is given up, and counted."""
        if token in self._sendings:
            self.counts[f"dropped_{reason}"] += 1
            self._end(token)

    def dead_letter_failed(self, token: int, now: float) -> None:
        """Note that the dead letter has not taken a record: it is tried again."""
        if token in self._sendings:
            self.counts["retried_dead_letter"] += 1
            heapq.heappush(self._late_rejected, (now + self._dead_delay.next(), token))

    # Own

    def _count_rejected(self, token: int, reason: str) -> None:
        self._sendings[token].reason = reason
        self.counts[f"rejected_{reason}"] += 1
        self._rejected.append(token)

    def _leave_sink(self, token: int) -> SinkDelivery | None:
        """Take a record from the sink; None for one that it does not have, which a late answer may name."""
        sending = self._sendings.get(token)
        if sending is None or not sending.at_sink:
            return None
        sending.at_sink = False
        lane = self._lanes[sending.record.lane]
        lane.at_sink -= 1
        self._queue(sending.record.lane, lane)
        return sending

    def _tidy(self, name: str) -> None:
        """Discard a lane that has nothing: topics come and go."""
        lane = self._lanes.get(name)
        if lane is not None and not lane.waiting and not lane.at_sink and lane.blocked_until == -math.inf:
            del self._lanes[name]

    def _end(self, token: int) -> None:
        sending = self._sendings.pop(token)
        message, unfinished = self._messages[sending.reference]
        if unfinished > 1:
            self._messages[sending.reference] = (message, unfinished - 1)
            return
        del self._messages[sending.reference]
        self._size -= message.size
        self._finished.append(sending.reference)

    def _queue(self, name: str, lane: _Lane) -> None:
        if lane.waiting and not lane.queued:
            lane.queued = True
            self._ready.append(name)

    def _wake(self, now: float) -> None:
        while self._blocked and self._blocked[0][0] <= now:
            _, name = heapq.heappop(self._blocked)
            lane = self._lanes.get(name)
            if lane is not None and lane.blocked_until <= now:
                lane.blocked_until = -math.inf
                self._queue(name, lane)
                self._tidy(name)
