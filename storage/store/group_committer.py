"""The shell of group commit: transactions on the loop's thread, syncs on a worker thread, acknowledgements after both.

lsm-db keeps the interpreter lock in every call, so a thread would not help it; ``os.fdatasync`` lets go. A failed sync
ends the process: the error leaves ``run`` and nothing may be acknowledged after it.
"""

import math
from collections.abc import Callable

import trio

from storage.store.errors import BatchUnknown, StoreError, StoreFailed, StoreFull
from storage.store.group_commit import Committed, GroupCommit, GroupCommitReady, LogSynced, Submitted, Waited
from storage.store.protocol import Batch, KeyValueStore, SyncTicket
from storage.store.settings import GroupCommitSettings

__all__ = ["GATHERED_MAX", "GroupCommitter"]

GATHERED_MAX = 3  # batches that wait for more of a loop that has more to do: some milliseconds


class GroupCommitter:
    """Collects the writes of a service for one store; see ``GroupCommit`` for when they are committed.

    Attributes:
        commits: Transactions so far.
        syncs: Syncs so far.
        rows: Rows written so far.
    """

    def __init__(
        self, store: KeyValueStore, on_durable: Callable[[int], None], settings: GroupCommitSettings | None = None
    ) -> None:
        """Args: on_durable: Called with n once batches 1 to n are durable; must not raise or block."""
        self.commits = 0
        self.syncs = 0
        self.rows = 0
        self._store = store
        self._on_durable = on_durable
        self._core = GroupCommit(settings or GroupCommitSettings())
        self._batches: list[Batch] = []  # of this turn of the loop
        self._submitted = 0
        self._deadline = math.inf
        self._wake = trio.Event()
        self._progress = trio.Event()
        self._failure: StoreError | None = None

    @property
    def congested(self) -> bool:
        """Whether the disk is behind: stop reading from clients and peers until ``room`` returns."""
        return self._core.backlog_bytes >= self._core.settings.backlog_bytes_max

    @property
    def durable(self) -> int:
        """Batches up to this number are durable."""
        return self._core.durable

    def submit(self, rows: Batch, *, more: bool = False) -> int:
        """Add the rows of one operation and return its number, ascending by one.

        Where ``more`` is about to be submitted they may wait for that, some batches together, unless a sync ends.

        Ask ``store.require_room`` before the operation is ordered: what was submitted is written whatever the floor.
        """
        self._batches.append(rows)
        self._submitted += 1
        if not more or len(self._batches) >= GATHERED_MAX:
            self._wake.set()
        return self._submitted

    async def room(self) -> None:
        """Wait until the backlog is below its bound; as long as the disk takes."""
        while self.congested:
            await self._wait_progress()

    async def wait_durable(self, batch: int) -> None:
        """Wait until a batch is durable; as long as the disk takes."""
        self._wake.set()
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
        async with trio.open_nursery() as nursery:
            try:
                await self._serve(nursery)
            except StoreError as error:
                self._fail(error)
            finally:
                self._progress.set()
        if self._failure is not None:
            raise self._failure  # out here, so that it does not come in an exception group

    async def _serve(self, nursery: trio.Nursery) -> None:
        while self._failure is None:
            self._wake = trio.Event()
            self._round(nursery)
            if self._batches:
                await trio.lowlevel.checkpoint()
            else:
                with trio.move_on_at(self._deadline):
                    await self._wake.wait()

    def _fail(self, error: StoreError) -> None:
        self._failure = self._failure or error
        self._wake.set()
        self._progress.set()

    def _round(self, nursery: trio.Nursery) -> None:
        """Feed everything submitted since the last turn, then do what is due."""
        operations, self._batches = self._batches, []
        event = Submitted(operations) if operations else Waited()
        self._perform(nursery, self._core.handle(trio.current_time(), event))

    def _perform(self, nursery: trio.Nursery, ready: GroupCommitReady) -> None:
        if ready.durable is not None:
            self._store.acked(ready.durable_transaction_no)  # before anybody is told
            self._on_durable(ready.durable)
            self._progress.set()
            self._progress = trio.Event()
        if ready.transaction is not None:
            transaction_no = self._write(ready.transaction)
            self.commits += 1
            self.rows += len(ready.transaction)
            self._perform(nursery, self._core.handle(trio.current_time(), Committed(transaction_no)))
            return
        if ready.sync:
            self.syncs += 1
            nursery.start_soon(self._sync, nursery, self._store.begin_sync(marker=ready.marker))
        self._deadline = ready.deadline

    def _write(self, rows: Batch) -> int:
        """Write a batch; one whose outcome is unknown is looked up by its number, and written once more if absent."""
        try:
            return self._store.write(rows, reclaiming=True)
        except BatchUnknown as error:
            if self._store.transaction_no >= error.transaction_no:
                return error.transaction_no
        except StoreFull as error:
            raise StoreFailed("the disk is full below what the floor keeps free") from error
        try:
            return self._store.write(rows, reclaiming=True)
        except (BatchUnknown, StoreFull) as error:
            raise StoreFailed("a batch failed twice") from error

    async def _sync(self, nursery: trio.Nursery, ticket: SyncTicket) -> None:
        try:
            await trio.to_thread.run_sync(ticket.run)
            self._perform(nursery, self._core.handle(trio.current_time(), LogSynced(ticket.transaction_no)))
        except StoreError as error:
            self._fail(error)
        self._wake.set()
