"""The thread that writes a spool, and the waiting for it: commits of many callers go into one synced transaction.

Decides how long a commit waits for company, how much goes together, and how often the file is looked at. The file is
``gateways/spool.py``.
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

GROUP_S = 0.002  # that the oldest commit of a transaction waits for others
GROUP_ROWS = 512
GROUP_BYTES = 8 << 20
LOOK_S = 5.0  # between two slices: 2 048 rows, or 4 MiB; a slice and the pages to read again cost 10 ms


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
        rows, transactions, seconds: Written so far: rows as callers gave them, and the time that it took.
        refused: Commits that found no room.
        looks: How often the whole file was looked through.
    """

    def __init__(self, file: SpoolFile, group_s: float = GROUP_S) -> None:
        """Start the thread; a single caller waits for no company: it sets ``group_s`` to 0."""
        self.rows = self.transactions = self.refused = self.looks = 0
        self.seconds = 0.0
        self._file, self._group_s = file, group_s
        self._waiting: deque[_Commit] = deque()  # each has a caller who waits
        self._rows = 0  # of those
        self._changed = threading.Condition()
        self._is_closing = False
        self._failure: SpoolFailed | None = None
        self._thread = threading.Thread(target=self._write, name="spool", daemon=True)
        self._thread.start()

    @property
    def size_bytes(self) -> int:
        """Return the bytes that are stored."""
        return self._file.size_bytes

    def load(self, kind: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of each row of a kind, in the order of keys; for the start of a process.

        Raises:
            UserError: A row is damaged.
        """
        return self._file.load(kind)

    async def commit(self, writes: Iterable[Write], *, drains: bool = False) -> None:
        """Store writes, all or none; they are synced when this returns.

        Commits take effect in the order of calls. A caller that is cancelled does not know what became of its writes.

        Args:
            writes: In their order.
            drains: With these writes the spool gets smaller, now or soon: they may use the reserve above the bound.

        Raises:
            SpoolFull: There is no room; nothing of these writes was stored.
            SpoolFailed: Nothing can be stored any more.
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
        """Look through the file, a slice each five seconds, for ever.

        Raises:
            SpoolFailed: It is damaged or was taken away: nothing is stored any more, and the process must end.
        """
        while True:
            await trio.sleep(LOOK_S)
            try:
                self.looks += await trio.to_thread.run_sync(self._file.look)
            except SpoolFailed as error:
                with self._changed:
                    self._failure = error
                raise

    def close(self) -> None:
        """Write what waits, end the thread and close the file."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()
        self._file.close()

    def _write(self) -> None:
        """Write transactions until told to close; this is the thread."""
        while group := self._next_group():
            room, growth = [], 0
            for each in group:
                if self._file.has_room(growth + each.growth_bytes, each.drains):
                    growth += each.growth_bytes
                    room.append(each)
                else:
                    each.error = SpoolFull(f"no room in the spool {self._file.path}: {self._file.bytes_max} bytes")
            self._commit(room)
            self.refused += sum(isinstance(each.error, SpoolFull) for each in group)
            for token in {each.token for each in group}:
                _tell(token, [each for each in group if each.token is token])

    def _commit(self, group: list[_Commit]) -> None:
        """Carry out one transaction; what it meets is each caller's error."""
        if not group:
            return
        begun = time.monotonic()
        try:
            self._file.commit(write for each in group for write in each.writes)
        except SpoolFull as error:
            for each in group:
                each.error = error
        except Exception as error:  # a thread that dies would let its callers wait for ever
            failure = error if isinstance(error, SpoolFailed) else SpoolFailed(f"the spool: {error!r}")
            with self._changed:
                self._failure = failure
            for each in group:
                each.error = failure
        else:
            self.transactions += 1
            self.rows += sum(len(each.writes) for each in group)
        self.seconds += time.monotonic() - begun

    def _next_group(self) -> list[_Commit]:
        """Wait for commits and for their company; return none when it is time to end."""
        with self._changed:
            while not self._waiting:
                if self._is_closing:
                    return []
                self._changed.wait()
            due = self._waiting[0].since + self._group_s
            while self._rows < GROUP_ROWS and not self._is_closing and (left := due - time.monotonic()) > 0:
                self._changed.wait(left)
            group, rows, size = [self._waiting.popleft()], 0, 0
            rows, size = len(group[0].writes), group[0].growth_bytes
            while self._waiting:
                rows += len(self._waiting[0].writes)
                size += self._waiting[0].growth_bytes
                if rows > GROUP_ROWS or size > GROUP_BYTES:
                    break
                group.append(self._waiting.popleft())
            self._rows -= sum(len(each.writes) for each in group)
            return group


def _tell(token: trio.lowlevel.TrioToken, group: list[_Commit]) -> None:
    def wake() -> None:
        for each in group:
            each.ended.set()

    try:
        token.run_sync_soon(wake)
    except trio.RunFinishedError:
        pass  # nobody waits any more


def register_spool_metrics(metrics: Metrics, spool: Spool) -> None:
    """Show a spool on a gateway's page of figures."""
    metrics.gauge("spool_bytes", "Bytes that the spool stores.", lambda: float(spool.size_bytes))
    metrics.counter("spool_rows_total", "Rows that were written or deleted.", lambda: float(spool.rows))
    metrics.counter("spool_transactions_total", "Synced transactions.", lambda: float(spool.transactions))
    metrics.counter("spool_seconds_total", "Time that transactions took, s.", lambda: spool.seconds)
    metrics.counter("spool_looks_total", "Times that the whole file was looked through.", lambda: float(spool.looks))
    metrics.counter("spool_refused_total", "Commits that found no room.", lambda: float(spool.refused))
