"""The pump of every bridge: order of records to a sink, retries, and acknowledgement of sources.

A source offers messages, the rules make records of each, the sink answers each record with done, retry or reject. A
message is finished, and its source acknowledged, when the sink has accepted each record. A rejected record must be
accepted by the dead letter instead. Records with one ordering key are sent in the order of their messages: one at a
time, or several if the sink keeps their order. A retry blocks its ordering key, without limit unless ``give_up_s`` is
set. Pure logic; time and randomness are arguments.
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


WINDOWS_MAX = 2  # by bytes, for a broker that exceeds Receive Maximum, or has none (3.1.1)


@dataclass(frozen=True, slots=True)
class PumpBounds:
    """Bounds of one pump.

    Attributes:
      messages, size_bytes: Unfinished messages. A source is not read above either.
      give_up_s: A record is rejected after retries for this long; 0: never.
      pipelined: The sink keeps the order of an ordering key: several of its records may be at the sink.
    """

    messages: int = 1024
    size_bytes: int = 64 * 1024 * 1024
    give_up_s: float = 0.0
    pipelined: bool = False


@dataclass(slots=True)
class SinkDelivery:
    """One record at the sink, or queued for it."""

    token: int  # increases in the order of messages
    record: SinkRecord
    reference: int  # of its message
    first_tried: float = -math.inf
    at_sink: bool = False
    reason: str = ""  # of a rejection by the sink


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A rejected record for the dead letter."""

    token: int
    record: SinkRecord
    reason: str


class _KeyQueue:
    """Records with one ordering key."""

    __slots__ = ("at_sink", "blocked_until", "delay", "queued", "waiting")

    def __init__(self, random: Random) -> None:
        self.waiting: list[int] = []  # tokens, a heap: a retried record returns to its old position
        self.at_sink = 0
        self.blocked_until = -math.inf
        self.delay = RetryDelay(random)
        self.queued = False  # is in ``_ready``


class BridgePump:
    """Unfinished messages of one direction of a bridge.

    Attributes:
      counts: Messages and records by result.
      retry_s: The latest delay, in seconds; 0 after the sink has accepted a record.
    """

    def __init__(self, bounds: PumpBounds, random: Random) -> None:
        self.counts: Counter[str] = Counter()
        self.retry_s = 0.0
        self._bounds, self._random = bounds, random
        self._next_token = 0
        self._size = 0
        self._messages: dict[int, tuple[BridgeMessage, int]] = {}  # reference -> message, unfinished records
        self._deliveries: dict[int, SinkDelivery] = {}
        self._key_queues: dict[str, _KeyQueue] = {}
        self._ready: deque[str] = deque()  # ordering keys that may send, round-robin
        self._blocked: list[tuple[float, str]] = []  # a heap of delayed ordering keys
        self._rejected: deque[int] = deque()
        self._dead_letter_retries: list[tuple[float, int]] = []  # a heap of retries after a failure of the dead letter
        self._dead_delay = RetryDelay(random)
        self._finished: deque[int] = deque()

    # Source

    @property
    def has_capacity(self) -> bool:
        """Whether the source may offer one more message."""
        return len(self._messages) < self._bounds.messages and self._size < self._bounds.size_bytes

    @property
    def is_overfull(self) -> bool:
        """Whether a source that ignores ``has_capacity`` has filled several windows: it must be stopped."""
        return self._size >= WINDOWS_MAX * self._bounds.size_bytes

    @property
    def is_half_free(self) -> bool:
        """Whether half of the window is free, by messages and by bytes."""
        return 2 * len(self._messages) <= self._bounds.messages and 2 * self._size <= self._bounds.size_bytes

    @property
    def open_messages(self) -> int:
        """Return the number of unfinished messages."""
        return len(self._messages)

    @property
    def open_bytes(self) -> int:
        """Return the size of the unfinished messages."""
        return self._size

    @property
    def waiting(self) -> int:
        """Return the number of records that are not at the sink."""
        return sum(len(key_queue.waiting) for key_queue in self._key_queues.values())

    def offer(self, reference: int, message: BridgeMessage, records: Sequence[SinkRecord]) -> None:
        """Add a message; without records it is finished at once."""
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
            self._deliveries[token] = SinkDelivery(token, record, reference)
            key_queue = self._key_queues.get(record.ordering_key)
            if key_queue is None:
                key_queue = self._key_queues[record.ordering_key] = _KeyQueue(self._random)
            heapq.heappush(key_queue.waiting, token)
            self._queue(record.ordering_key, key_queue)

    def reject_message(self, reference: int, message: BridgeMessage, reason: str) -> None:
        """Send a message for which the rules failed to the dead letter."""
        record = SinkRecord(message.topic, message.payload, message.topic, message, message.key)
        self.counts["received"] += 1
        self._messages[reference] = (message, 1)
        self._size += message.size
        token = self._next_token
        self._next_token += 1
        self._deliveries[token] = SinkDelivery(token, record, reference, reason=reason)
        self._count_rejected(token, reason)

    def restore(self, reference: int, message: BridgeMessage, record: SinkRecord, reason: str, now: float) -> int:
        """Add a message whose record a former process sent to the sink, or with a reason to the dead letter.

        Returns:
          The token for the answer.
        """
        self.counts["restored"] += 1
        self._messages[reference] = (message, 1)
        self._size += message.size
        token = self._next_token
        self._next_token += 1
        self._deliveries[token] = SinkDelivery(token, record, reference, now, at_sink=not reason, reason=reason)
        if not reason:
            self._key_queues.setdefault(record.ordering_key, _KeyQueue(self._random)).at_sink += 1
        return token

    def get_origin(self, token: int) -> tuple[int, BridgeMessage]:
        """Return the source reference and the message of an unfinished record."""
        reference = self._deliveries[token].reference
        return reference, self._messages[reference][0]

    def finished(self) -> list[int]:
        """Return the messages finished since the last call; the caller acknowledges them."""
        finished = list(self._finished)
        self._finished.clear()
        return finished

    # Sink

    def next_delivery(self, now: float) -> SinkDelivery | None:
        """Return the next record for the sink, None if there is none now."""
        self._unblock(now)
        while self._ready:
            name = self._ready.popleft()
            key_queue = self._key_queues.get(name)
            if key_queue is None:
                continue  # removed meanwhile
            key_queue.queued = False
            if (
                not key_queue.waiting
                or key_queue.blocked_until > now
                or (key_queue.at_sink and not self._bounds.pipelined)
            ):
                continue
            sending = self._deliveries[heapq.heappop(key_queue.waiting)]
            key_queue.at_sink += 1
            sending.at_sink = True
            if sending.first_tried == -math.inf:
                sending.first_tried = now
            if self._bounds.pipelined:
                self._queue(name, key_queue)
            return sending
        return None

    def next_deadline(self) -> float:
        """Return the time of the next retry; infinity if there is none."""
        due = self._blocked[0][0] if self._blocked else math.inf
        return min(due, self._dead_letter_retries[0][0]) if self._dead_letter_retries else due

    def done(self, token: int) -> None:
        """Record that the sink has accepted a record."""
        sending = self._remove_from_sink(token)
        if sending is not None:
            self.counts["delivered"] += 1
            self.retry_s = 0.0
            self._key_queues[sending.record.ordering_key].delay.reset()
            self._remove_if_idle(sending.record.ordering_key)
            self._end(token)

    def retry(self, token: int, now: float, after_s: float | None = None, reason: str = "failed") -> None:
        """Schedule a retry of a record: after a delay with jitter, or after ``after_s``.

        It blocks its ordering key. ``after_s`` 0 means at once: the sink was not at fault.
        """
        sending = self._remove_from_sink(token)
        if sending is None:
            return
        self.counts[f"retried_{reason}"] += 1
        if self._bounds.give_up_s and now - sending.first_tried >= self._bounds.give_up_s:
            self._remove_if_idle(sending.record.ordering_key)
            self._count_rejected(token, "gave_up")
            return
        name = sending.record.ordering_key
        key_queue = self._key_queues[name]
        heapq.heappush(key_queue.waiting, token)
        if after_s is not None:
            delay = after_s
        elif key_queue.blocked_until > now:
            delay = key_queue.blocked_until - now  # further records of one failure do not increase the delay
        else:
            delay = key_queue.delay.next()
        self.retry_s = delay
        if delay > 0:
            key_queue.blocked_until = max(key_queue.blocked_until, now + delay)
            heapq.heappush(self._blocked, (key_queue.blocked_until, name))
        else:
            self._queue(name, key_queue)

    def reject(self, token: int, reason: str) -> None:
        """Record a permanent failure at the sink: the record goes to the dead letter."""
        sending = self._remove_from_sink(token)
        if sending is not None:
            self._remove_if_idle(sending.record.ordering_key)
            self._count_rejected(token, reason)

    # Dead letter

    def next_dead_letter(self, now: float) -> DeadLetter | None:
        """Return the next rejected record, None if there is none now."""
        while self._dead_letter_retries and self._dead_letter_retries[0][0] <= now:
            self._rejected.append(heapq.heappop(self._dead_letter_retries)[1])
        if not self._rejected:
            return None
        sending = self._deliveries[self._rejected.popleft()]
        return DeadLetter(sending.token, sending.record, sending.reason)

    def dead_letter_done(self, token: int) -> None:
        """Record that the dead letter has accepted a record, which finishes it."""
        if token in self._deliveries:
            self.counts["dead_letter"] += 1
            self._dead_delay.reset()
            self._end(token)

    def dead_letter_dropped(self, token: int, reason: str) -> None:
        """Count and give up a record that no dead letter accepts."""
        if token in self._deliveries:
            self.counts[f"dropped_{reason}"] += 1
            self._end(token)

    def dead_letter_failed(self, token: int, now: float) -> None:
        """Schedule a retry at the dead letter."""
        if token in self._deliveries:
            self.counts["retried_dead_letter"] += 1
            heapq.heappush(self._dead_letter_retries, (now + self._dead_delay.next(), token))

    # Internal

    def _count_rejected(self, token: int, reason: str) -> None:
        self._deliveries[token].reason = reason
        self.counts[f"rejected_{reason}"] += 1
        self._rejected.append(token)

    def _remove_from_sink(self, token: int) -> SinkDelivery | None:
        """Remove a record from the sink; None if it is not there, as after a late answer."""
        sending = self._deliveries.get(token)
        if sending is None or not sending.at_sink:
            return None
        sending.at_sink = False
        key_queue = self._key_queues[sending.record.ordering_key]
        key_queue.at_sink -= 1
        self._queue(sending.record.ordering_key, key_queue)
        return sending

    def _remove_if_idle(self, name: str) -> None:
        """Remove an idle ordering key: topics are not bounded."""
        key_queue = self._key_queues.get(name)
        if (
            key_queue is not None
            and not key_queue.waiting
            and not key_queue.at_sink
            and key_queue.blocked_until == -math.inf
        ):
            del self._key_queues[name]

    def _end(self, token: int) -> None:
        sending = self._deliveries.pop(token)
        message, unfinished = self._messages[sending.reference]
        if unfinished > 1:
            self._messages[sending.reference] = (message, unfinished - 1)
            return
        del self._messages[sending.reference]
        self._size -= message.size
        self._finished.append(sending.reference)

    def _queue(self, name: str, key_queue: _KeyQueue) -> None:
        if key_queue.waiting and not key_queue.queued:
            key_queue.queued = True
            self._ready.append(name)

    def _unblock(self, now: float) -> None:
        while self._blocked and self._blocked[0][0] <= now:
            _, name = heapq.heappop(self._blocked)
            key_queue = self._key_queues.get(name)
            if key_queue is not None and key_queue.blocked_until <= now:
                key_queue.blocked_until = -math.inf
                self._queue(name, key_queue)
                self._remove_if_idle(name)
