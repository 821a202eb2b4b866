"""Sinks that write batches: bounded by size and number, ordered by ordering key, retried as a whole.

Each worker has the records of its ordering keys. After a failed batch it returns all its records, so that the pump, not
the sink, decides the order of retries. A rejected batch is written record by record, so that one bad record sends no
other record to the dead letter.
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
    """Outcome of a batch: success without text; otherwise retried, or rejected with a reason."""

    text: str = ""
    reason: str = ""  # of a rejection
    after_s: float | None = None  # delay before the retry, as given by the remote system


class BatchSink:
    """Base class; a subclass defines ``name`` and ``write``.

    Args:
      flow: The flow of the records.
      messages, size_bytes: Bounds of a batch; a single record may be larger.
      workers: Concurrent batches.
    """

    name = "sink"

    def __init__(self, flow: BridgeFlow, messages: int, size_bytes: int, workers: int = 1) -> None:
        self.is_up = False
        self.reason = "not connected yet"
        self._flow, self._messages, self._size_bytes = flow, messages, size_bytes
        self._queues: list[deque[SinkDelivery]] = [deque() for _ in range(workers)]
        self._wakes = [trio.Event() for _ in range(workers)]

    @property
    def has_capacity(self) -> bool:
        """Whether one more record may be queued."""
        return sum(map(len, self._queues)) < 2 * self._messages * len(self._queues)

    def send(self, sending: SinkDelivery) -> None:
        """Queue a record for its batch."""
        worker = zlib.crc32(sending.record.ordering_key.encode()) % len(self._queues)
        self._queues[worker].append(sending)
        self._wakes[worker].set()

    async def write(self, batch: Sequence[SinkDelivery]) -> BatchResult:
        """Write a batch; raises no exception."""
        raise NotImplementedError

    async def work(self, worker: int) -> None:
        """Write queued batches until cancelled."""
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
        """Report the outcome of a batch to the flow; return False if it is retried."""
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
        """Return queued records after a failure: they may share an ordering key with the failed records."""
        waiting, delay = [*rest, *queue], self._flow.pump.retry_s
        queue.clear()
        for each in waiting:
            self._flow.retry(each.token, self.reason, reason="behind_failure", after_s=delay)
