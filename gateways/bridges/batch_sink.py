"""Sinks that take many records at once: batches by size and number, in the order of each lane, tried again as a whole.

A worker has the records of its lanes. When its batch fails it gives everything back that it has, so that the pump, not
the sink, decides what comes first. A batch that is rejected is tried record by record: one bad record takes no other
one to the dead letter.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from gateways.bridges.flow import BridgeFlow
from gateways.bridges.pump import SinkDelivery

__all__ = ["BatchResult", "BatchSink"]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Outcome of a batch: done without text; else tried again, or rejected for a reason."""

    text: str = ""
    reason: str = ""  # of a rejection
    after_s: float | None = None  # before the next attempt, as the other side says


class BatchSink:
    """Base of such sinks; a subclass has ``name`` and ``write``.

    Args:
        flow: Whose records come.
        messages, size_bytes: Of one batch; a single record may be larger.
        workers: Batches that are written at the same time.
    """

    name = "sink"

    def __init__(self, flow: BridgeFlow, messages: int, size_bytes: int, workers: int = 1) -> None:
        self.is_up = False
        self.reason = "not connected yet"
        self._flow, self._messages, self._size_bytes = flow, messages, size_bytes
        self._queues: list[deque[SinkDelivery]] = [deque() for _ in range(workers)]
        self._wakes = [trio.Event() for _ in range(workers)]

    @property
    def has_room(self) -> bool:
        """Whether one more record may wait."""
        return sum(map(len, self._queues)) < 2 * self._messages * len(self._queues)

    def send(self, sending: SinkDelivery) -> None:
        """Let a record wait for its batch."""
        worker = zlib.crc32(sending.record.lane.encode()) % len(self._queues)
        self._queues[worker].append(sending)
        self._wakes[worker].set()

    async def write(self, batch: Sequence[SinkDelivery]) -> BatchResult:
        """Write a batch; no exception leaves."""
        raise NotImplementedError

    async def work(self, worker: int) -> None:
        """Write what waits, for ever."""
        queue = self._queues[worker]
        while True:
            while not queue:
                self._wakes[worker] = trio.Event()
                await self._wakes[worker].wait()
            batch, size = [queue.popleft()], 0
            while queue and len(batch) < self._messages:
                size += len(batch[-1].record.payload)
                if size + len(queue[0].record.payload) > self._size_bytes:
                    break
                batch.append(queue.popleft())
            await self._attempt(batch, queue)

    async def _attempt(self, batch: list[SinkDelivery], queue: deque[SinkDelivery]) -> None:
        outcome = await self.write(batch)
        if outcome.reason and len(batch) > 1:
            for number, each in enumerate(batch):
                if not await self._settle([each], await self.write([each])):
                    self._give_back(batch[number + 1 :], queue)
                    return
        elif not await self._settle(batch, outcome):
            self._give_back([], queue)

    async def _settle(self, batch: list[SinkDelivery], outcome: BatchResult) -> bool:
        """Answer the records of a batch; return False when they are tried again."""
        if not outcome.text:
            self.is_up, self.reason = True, ""
            for each in batch:
                self._flow.done(each.token)
        elif outcome.reason:
            self.is_up, self.reason = True, ""
            for each in batch:
                self._flow.reject(each.token, outcome.reason, outcome.text)
        else:
            self.is_up, self.reason = False, outcome.text
            for each in batch:
                self._flow.retry(each.token, outcome.text, after_s=outcome.after_s)
            return False
        return True

    def _give_back(self, rest: list[SinkDelivery], queue: deque[SinkDelivery]) -> None:
        """Give back what waits behind a failure: its lanes may be those of the failed records."""
        waiting, delay = [*rest, *queue], self._flow.pump.retry_s
        queue.clear()
        for each in waiting:
            self._flow.retry(each.token, self.reason, reason="behind_failure", after_s=delay)
