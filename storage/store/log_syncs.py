"""Syncs of a store on a C thread that never takes the interpreter lock.

The loop continues during a sync; the thread signals its end by an eventfd. While the disk is fast the loop waits for
the end at once, at most ``WAIT_S``: the result arrives earlier, and each sync saves one wakeup. One sync at a time;
``group_commit`` decides the commits that it covers and its start.
"""

import os
from collections.abc import Callable
from functools import partial

import trio

from conf.compiled import NotCompiled
from conf.metrics import PowersOfTwo
from storage.store.errors import SyncFailed
from storage.store.protocol import SyncTicket
from storage.store.store_sync import StoreSync
from wire.links.reactor_hook import ReactorHook

try:
    from storage.store._sync_thread import SyncThread
except ImportError as error:
    raise NotCompiled("not compiled: storage.store._sync_thread; run `make setup`") from error

__all__ = ["LogSyncs"]


WAIT_S = 0.001  # maximum, and only while syncs are shorter: the delay of links and leases
_MEAN_WEIGHT = 0.25  # of the newest sync in the running mean


class LogSyncs:
    """The sync thread of one store.

    Attributes:
        lengths: Durations of its syncs.
    """

    def __init__(self, reads: ReactorHook | None = None, *, wait_s: float | None = None) -> None:
        """Args:
        reads: Receives the end of a sync without a trio scheduling pass.
        wait_s: In ``begin``, while syncs are shorter; ``WAIT_S`` if not given.
        """
        self._thread = SyncThread()
        self._wait_s = WAIT_S if wait_s is None else wait_s
        self._reads = reads
        self._mean_s = 0.0
        self.lengths = PowersOfTwo()

    def begin(self, ticket: SyncTicket) -> bool:
        """Begin a sync (none may be running); return whether it has ended already. Raises SyncFailed likewise."""
        assert isinstance(ticket, StoreSync)
        log, marker = ticket.hand_over()
        end = self._thread.begin(log, marker, int(self._wait_s * 1e6) if self._mean_s < self._wait_s else 0)
        if end is None:
            return False
        self._record_end(*end)
        return True

    async def attend(self, ended: Callable[[], None]) -> None:
        """Call ``ended`` for each sync that has ended since ``begin`` returned, until cancelled.

        Raises:
            SyncFailed: One failed; the process must end.
        """
        poll = partial(self._poll_end, ended)
        if self._reads is not None:
            return await self._reads.reading(self._thread.fileno(), poll)
        while True:
            await trio.lowlevel.wait_readable(self._thread.fileno())
            poll()

    def _poll_end(self, ended: Callable[[], None]) -> None:
        if (end := self._thread.end()) is not None:
            self._record_end(*end)
            ended()

    def _record_end(self, failed: int, took_s: float) -> None:
        if failed:
            raise SyncFailed(f"fdatasync: {os.strerror(failed)}")
        self.lengths.observe(took_s)
        self._mean_s += _MEAN_WEIGHT * (took_s - self._mean_s)

    def close(self) -> None:
        """Wait for a running sync, and end the thread."""
        self._thread.close()
