"""Syncs of a store beside the loop: on a thread in C that never asks for the interpreter lock.

The loop goes on however long the disk takes, and neither waits for the other's lock: the thread says by an eventfd that
a sync has ended. One sync at a time; which commits it covers, and when it begins, is decided by ``group_commit``.
"""

import os

import trio

from conf.compiled import NotCompiled
from storage.store.errors import SyncFailed
from storage.store.protocol import SyncTicket
from storage.store.store_sync import StoreSync

try:
    from storage.store._sync_thread import SyncThread
except ImportError as error:
    raise NotCompiled("not compiled: storage.store._sync_thread; run `make setup`") from error

__all__ = ["LogSyncs"]


class LogSyncs:
    """The thread of one store."""

    def __init__(self) -> None:
        self._thread = SyncThread()

    def begin(self, ticket: SyncTicket) -> None:
        """Begin a sync; none may be under way."""
        assert isinstance(ticket, StoreSync)
        self._thread.begin(*ticket.hand_over())

    async def ended(self) -> None:
        """Wait until a sync has ended.

        Raises:
            SyncFailed: It failed; the process must end.
        """
        while (end := self._thread.end()) is None:
            await trio.lowlevel.wait_readable(self._thread.fileno())
        if end[0]:
            raise SyncFailed(f"fdatasync: {os.strerror(end[0])}")

    def close(self) -> None:
        """Wait for a sync that runs, and end the thread."""
        self._thread.close()
