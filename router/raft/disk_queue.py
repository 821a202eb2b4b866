"""Group commit: pending disk writes in order, one sync at a time in a thread.

A sync covers all Readies that arrived during the previous sync. Readies are written and reported in order. Only the
newest hard state of a batch is written, before its entries, because it includes the promises of the older ones. A disk
error is final and propagates: a successful retry of fsync does not prove that the data is on disk.
"""

from collections import deque
from collections.abc import Callable

import msgspec
import trio

from router.raft.events import RaftReady, Snapshot
from router.raft.messages import LogEntry
from router.raft.storage import Storage

__all__ = ["DiskQueue"]


class DiskQueue:
    """Readies waiting for the disk. The core bounds them: it refuses proposals beyond ``max_uncommitted_bytes``."""

    def __init__(self, storage: Storage, on_disk: Callable[[list[RaftReady], Snapshot | None], None]) -> None:
        """Initialize; ``on_disk`` receives the Readies and the own snapshot that became durable."""
        self._storage = storage
        self._on_disk = on_disk
        self._waiting: deque[RaftReady] = deque()
        self._snapshot: tuple[Snapshot, Callable[[], bytes]] | None = None
        self._syncing = False
        self._wake = trio.Event()
        self._limiter = trio.CapacityLimiter(1)  # own limiter: other threads must not delay votes

    @property
    def busy(self) -> bool:
        """Whether a write runs or waits; later messages must wait for it."""
        return self._syncing or bool(self._waiting)

    @property
    def saving_snapshot(self) -> bool:
        """Whether an own snapshot is not durable yet."""
        return self._snapshot is not None

    def persist(self, ready: RaftReady) -> None:
        """Queue the Ready for the next sync."""
        self._waiting.append(ready)
        self._wake.set()

    def save(self, snapshot: Snapshot, encode: Callable[[], bytes]) -> None:
        """Queue an own snapshot for the next sync; ``encode`` runs in the writing thread."""
        self._snapshot = snapshot, encode
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled; a running sync is completed."""
        while True:
            if not self._waiting and self._snapshot is None:
                await self._wake.wait()  # without timeout: an idle peer writes nothing
            self._wake = trio.Event()
            batch, own = list(self._waiting), self._snapshot
            self._waiting.clear()
            self._syncing = True
            saved = await trio.to_thread.run_sync(self._write, batch, own, limiter=self._limiter)
            self._syncing = False
            if own is not None:
                self._snapshot = None
            self._on_disk(batch, saved)

    def _write(self, batch: list[RaftReady], own: tuple[Snapshot, Callable[[], bytes]] | None) -> Snapshot | None:
        """Return the own snapshot that became durable. Runs in a thread."""
        storage = self._storage
        hard_states = [ready.hard_state for ready in batch if ready.hard_state is not None]
        if hard_states:
            storage.write(hard_states[-1], ())
        entries: list[LogEntry] = []
        for ready in batch:
            if ready.snapshot is not None:
                storage.write(None, entries)
                entries = []
                storage.sync()
                storage.install_snapshot(ready.snapshot)
            entries.extend(ready.entries)
        if entries:
            storage.write(None, entries)
            storage.sync()
        if own is None:
            return None
        snapshot = msgspec.structs.replace(own[0], data=own[1]())
        storage.save_snapshot(snapshot)
        return snapshot

    def close(self) -> None:
        """Close the storage."""
        self._storage.close()
