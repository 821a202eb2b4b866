"""The shell of group commit: transactions in the submitting iteration, syncs beside the loop, then notifications.

lsm-db holds the interpreter lock in every call, so a thread would not help. Syncs run on a thread that never takes
that lock (``log_syncs``). A failed sync ends the process: the error leaves ``run``, and no acknowledgement may follow.
"""

import math
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from storage.store.checkpointer import Checkpointer
from storage.store.errors import BatchUnknown, StoreError, StoreFailed, StoreFull
from storage.store.group_commit import Committed, CommitWaited, GroupCommit, GroupCommitReady, LogSynced, Submitted
from storage.store.log_syncs import LogSyncs
from storage.store.protocol import Batch, KeyValueStore, Syncs
from storage.store.settings import GroupCommitSettings

__all__ = ["GATHERED_MAX", "GroupCommitter"]

GATHERED_MAX = 3  # batches that wait for more from a busy loop: some milliseconds


class GroupCommitter:
    """Collects the writes of a service for one store; ``GroupCommit`` decides when they are committed.

    Attributes:
        commits: Transactions so far.
        syncs: Syncs so far.
        rows: Rows written so far.
    """

    def __init__(
        self,
        store: KeyValueStore,
        on_durable: Callable[[int], None],
        settings: GroupCommitSettings | None = None,
        syncs: Syncs | None = None,
        then: Callable[[], None] = lambda: None,
        checkpoint_syncs: Syncs | None = None,
    ) -> None:
        """Args:
        on_durable: Called with n once batches 1 to n are durable, from within ``submit`` too; must not raise, block or
            submit.
        syncs: Runs the store's syncs; closed when ``run`` ends.
        then: Called when batches may have become durable outside ``submit``; may submit.
        checkpoint_syncs: Runs those of its checkpoints; likewise.
        """
        self.commits = 0
        self.syncs = 0
        self.rows = 0
        self._store = store
        self._on_durable = on_durable
        self._core = GroupCommit(settings or GroupCommitSettings())
        self._syncs = syncs or LogSyncs()
        self._then = then
        self._checkpointer = Checkpointer(store, checkpoint_syncs or LogSyncs(wait_s=0.0), self._checkpoint_ended)
        self._synced_to = 0  # transaction_no that the running sync makes durable
        self._batches: list[Batch] = []  # of this loop iteration
        self._submitted = 0
        self._serving = False
        self._deadline = math.inf
        self._wakes_at = math.inf  # when ``run`` wakes up by itself
        self._wake = trio.Event()
        self._progress = trio.Event()
        self._failure: StoreError | None = None

    @property
    def congested(self) -> bool:
        """Whether the disk is congested: events of edges and backups that need writes must wait.

        ``on_durable`` or ``then`` are called when that may have ended.
        """
        return self._core.backlog_bytes >= self._core.settings.backlog_bytes_max

    @property
    def durable(self) -> int:
        """Number of the newest durable batch."""
        return self._core.durable

    def submit(self, rows: Batch, *, more: bool = False) -> int:
        """Add the rows of one operation, and commit them if it is due; return its number, ascending by one.

        With ``more`` a few batches may wait to be committed together, unless a sync ends. Call ``store.require_room``
        before an operation gets its number: submitted rows are written whatever the floor is.
        """
        self._batches.append(rows)
        self._submitted += 1
        if self._serving and (not more or len(self._batches) >= GATHERED_MAX):
            self._round()
        return self._submitted

    async def wait_durable(self, batch: int) -> None:
        """Wait until a batch is durable, without a timeout: the disk decides."""
        if self._serving and self._batches:
            self._round()
        while self._core.durable < batch:
            await self._wait_progress()

    async def _wait_progress(self) -> None:
        await self._progress.wait()
        if self._failure is not None:
            raise StoreFailed("group commit has stopped") from self._failure

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            StoreError: A sync failed, or the store could not be reopened: end the process.
        """
        self._serving = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._take_ends, partial(self._syncs.attend, self._sync_ended))
                nursery.start_soon(self._take_ends, self._checkpointer.run)
                self._round()
                await self._wait_deadlines()
                nursery.cancel_scope.cancel()
        finally:
            self._serving = False
            self._progress.set()
            self._syncs.close()
            self._checkpointer.close()
        if self._failure is not None:
            raise self._failure  # outside the nursery, so that it is not in an exception group

    async def _take_ends(self, attend: Callable[[], Awaitable[None]]) -> None:
        """Continue whenever a sync ends."""
        try:
            await attend()
        except StoreError as error:
            self._fail(error)

    def _sync_ended(self) -> None:
        if self._failure is None:
            self._handle(LogSynced(self._synced_to))
            if self._batches:
                self._round()
            self._resume()

    def _checkpoint_ended(self) -> None:
        self._round()  # commits that the checkpoint held
        self._resume()

    async def _wait_deadlines(self) -> None:
        """Run a round at each deadline until an error."""
        while self._failure is None:
            self._wake = trio.Event()
            self._wakes_at = self._deadline
            with trio.move_on_at(self._wakes_at):
                await self._wake.wait()
            if trio.current_time() >= self._deadline:
                self._round()
                self._resume()

    def _resume(self) -> None:
        if self._failure is None:
            self._then()

    def _fail(self, error: StoreError) -> None:
        self._failure = self._failure or error
        self._wake.set()
        self._progress.set()

    def _round(self) -> None:
        """Process all batches submitted since the last iteration, and do due work."""
        if self._store.makes_room:
            self._make_room()
        operations, self._batches = self._batches, []
        self._handle(Submitted(operations) if operations else CommitWaited())

    def _make_room(self) -> None:
        """Run a slice of the work that commits wait for; the next slice follows in the next iteration."""
        try:
            self._store.make_room()
            self._checkpointer.begin_due()
        except StoreError as error:
            self._fail(error)

    def _handle(self, event: Submitted | LogSynced | CommitWaited) -> None:
        if self._failure is not None:
            return  # after a failure: no write and no announcement
        try:
            self._perform(self._handle_event(event))
        except StoreError as error:
            self._fail(error)
        if self._deadline < self._wakes_at:
            self._wake.set()

    def _handle_event(self, event: Submitted | Committed | LogSynced | CommitWaited) -> GroupCommitReady:
        return self._core.handle(trio.current_time(), event, crowded=self._store.crowded, held=self._store.held)

    def _perform(self, ready: GroupCommitReady) -> None:
        if ready.durable is not None:
            self._store.acked(ready.durable_transaction_no)  # before the announcement
            self._on_durable(ready.durable)
            self._progress.set()
            self._progress = trio.Event()
        if ready.transaction is not None:
            transaction_no = self._write(ready.transaction)
            self.commits += 1
            self.rows += len(ready.transaction)
            self._checkpointer.begin_due()
            self._perform(self._handle_event(Committed(transaction_no)))
            return
        if ready.sync:
            self.syncs += 1
            ticket = self._store.begin_sync(marker=ready.marker)
            self._synced_to = ticket.transaction_no
            if self._syncs.begin(ticket):
                self._perform(self._handle_event(LogSynced(self._synced_to)))
                return
        self._deadline = -math.inf if self._store.makes_room else ready.deadline

    def _write(self, rows: Batch) -> int:
        """Write a batch; if its outcome is unknown, check its number, and write it again if it is absent."""
        try:
            return self._store.write(rows, reclaiming=True)
        except BatchUnknown as error:
            if self._store.transaction_no >= error.transaction_no:
                return error.transaction_no
        except StoreFull as error:
            raise StoreFailed("the disk is full: free space is below the floor") from error
        try:
            return self._store.write(rows, reclaiming=True)
        except (BatchUnknown, StoreFull) as error:
            raise StoreFailed("a batch failed twice") from error
