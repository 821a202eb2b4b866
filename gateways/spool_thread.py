"""The writer thread of a spool: commits of many callers share one synced transaction.

Defines the batch delay, the batch size and the interval of verification. The file is ``gateways/spool.py``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import trio

from conf.metrics import Metrics
from gateways.spool import ROW_BYTES, SpoolFailed, SpoolFile, SpoolFull
from gateways.spool_rows import Put, Write

__all__ = ["Spool", "register_spool_metrics"]

BATCH_S = 0.002  # the oldest commit of a transaction waits this long for others
BATCH_ROWS = 512
BATCH_BYTES = 8 << 20
VERIFY_INTERVAL_S = 5.0  # between two slices of 2 048 rows or 4 MiB; a slice with its page reads takes 10 ms


@dataclass(slots=True)
class _Commit:
    """One caller's writes."""

    writes: list[Write]
    growth_bytes: int
    drains: bool
    since: float
    token: trio.lowlevel.TrioToken
    ended: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None


class Spool:
    """A spool and its thread, which runs until ``close``.

    Attributes:
      rows, transactions, seconds: Totals: rows as given by callers, transactions, and their duration.
      refused: Commits refused because the spool is full.
      scrubs: Completed verifications of the whole file.
    """

    def __init__(self, file: SpoolFile, group_s: float = BATCH_S) -> None:
        """Start the thread; for a single caller set ``group_s`` to 0."""
        self.rows = self.transactions = self.refused = self.scrubs = 0
        self.seconds = 0.0
        self._file, self._batch_s = file, group_s
        self._waiting: deque[_Commit] = deque()  # pending commits; a caller waits for each
        self._rows = 0  # rows of the pending commits
        self._changed = threading.Condition()
        self._is_closing = False
        self._failure: SpoolFailed | None = None
        self._thread = threading.Thread(target=self._write, name="spool", daemon=True)
        self._thread.start()

    @property
    def size_bytes(self) -> int:
        """Return the stored bytes."""
        return self._file.size_bytes

    def load(self, kind: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of each row of a kind, in key order; for the start of a process.

        Raises:
          UserError: A row is damaged.
        """
        return self._file.load(kind)

    async def commit(self, writes: Iterable[Write], *, drains: bool = False) -> None:
        """Store writes, all or none; they are synced on return.

        Commits take effect in the order of calls. A cancelled caller does not learn whether its writes were stored.

        Args:
          writes: In order.
          drains: These writes shrink the spool, now or soon: they may use the reserve above the bound.

        Raises:
          SpoolFull: The spool is full; no write was stored.
          SpoolFailed: The spool is no longer writable.
        """
        own = list(writes)
        if not own:
            await trio.lowlevel.checkpoint()
            return
        growth = sum([ROW_BYTES + len(each.key) + len(each.value) for each in own if type(each) is Put])
        commit = _Commit(own, growth, drains, time.monotonic(), trio.lowlevel.current_trio_token())
        with self._changed:
            if self._failure is not None or self._is_closing:
                raise self._failure or SpoolFailed("the spool is closed")
            self._waiting.append(commit)
            self._rows += len(own)
            self._changed.notify()
        await commit.ended.wait()
        if commit.error is not None:
            raise commit.error

    async def watch(self) -> NoReturn:
        """Verify one slice of the file every five seconds until cancelled.

        Raises:
          SpoolFailed: The file is damaged or removed; the process must end.
        """
        while True:
            await trio.sleep(VERIFY_INTERVAL_S)
            try:
                self.scrubs += await trio.to_thread.run_sync(self._file.verify_slice)
            except SpoolFailed as error:
                with self._changed:
                    self._failure = error
                raise

    def close(self) -> None:
        """Write the pending commits, end the thread and close the file."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()
        self._file.close()

    def _write(self) -> None:
        """Write transactions until closed; the thread's function."""
        while group := self._next_batch():
            fitting, growth = [], 0
            for each in group:
                if self._file.has_capacity(growth + each.growth_bytes, each.drains):
                    growth += each.growth_bytes
                    fitting.append(each)
                else:
                    each.error = SpoolFull(f"the spool {self._file.path} is full: {self._file.bytes_max} bytes")
            self._commit(fitting)
            self.refused += sum(isinstance(each.error, SpoolFull) for each in group)
            for token in {each.token for each in group}:
                _wake_callers(token, [each for each in group if each.token is token])

    def _commit(self, group: list[_Commit]) -> None:
        """Carry out one transaction; each caller receives its error."""
        if not group:
            return
        begun = time.monotonic()
        try:
            self._file.commit(write for each in group for write in each.writes)
        except SpoolFull as error:
            for each in group:
                each.error = error
        except Exception as error:  # if the thread died, its callers would wait without limit
            failure = error if isinstance(error, SpoolFailed) else SpoolFailed(f"the spool: {error!r}")
            with self._changed:
                self._failure = failure
            for each in group:
                each.error = failure
        else:
            self.transactions += 1
            self.rows += sum(len(each.writes) for each in group)
        self.seconds += time.monotonic() - begun

    def _next_batch(self) -> list[_Commit]:
        """Wait for a batch of commits; return an empty list at shutdown."""
        with self._changed:
            while not self._waiting:
                if self._is_closing:
                    return []
                self._changed.wait()
            due = self._waiting[0].since + self._batch_s
            while self._rows < BATCH_ROWS and not self._is_closing and (left := due - time.monotonic()) > 0:
                self._changed.wait(left)
            group, rows, size = [self._waiting.popleft()], 0, 0
            rows, size = len(group[0].writes), group[0].growth_bytes
            while self._waiting:
                rows += len(self._waiting[0].writes)
                size += self._waiting[0].growth_bytes
                if rows > BATCH_ROWS or size > BATCH_BYTES:
                    break
                group.append(self._waiting.popleft())
            self._rows -= sum(len(each.writes) for each in group)
            return group


def _wake_callers(token: trio.lowlevel.TrioToken, group: list[_Commit]) -> None:
    def wake() -> None:
        for each in group:
            each.ended.set()

    try:
        token.run_sync_soon(wake)
    except trio.RunFinishedError:
        pass  # no caller waits any longer


def register_spool_metrics(metrics: Metrics, spool: Spool) -> None:
    """Register a spool's metrics."""
    metrics.gauge("spool_bytes", "Bytes that the spool stores.", lambda: float(spool.size_bytes))
    metrics.counter("spool_rows_total", "Rows written or deleted.", lambda: float(spool.rows))
    metrics.counter("spool_transactions_total", "Synced transactions.", lambda: float(spool.transactions))
    metrics.counter("spool_seconds_total", "Duration of all transactions, s.", lambda: spool.seconds)
    metrics.counter("spool_looks_total", "Completed verifications of the whole file.", lambda: float(spool.scrubs))
    metrics.counter("spool_refused_total", "Commits refused because the spool was full.", lambda: float(spool.refused))
