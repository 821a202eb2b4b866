"""Timing of commits and syncs, and durability only after a sync that started after the commit."""

import os
import random
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from storage.store import log_syncs, wal_store, write_ahead
from storage.store.errors import StoreFailed, StoreFatal, SyncFailed
from storage.store.group_commit import Committed, CommitWaited, GroupCommit, GroupCommitReady, LogSynced, Submitted
from storage.store.group_committer import GATHERED_MAX, GroupCommitter
from storage.store.protocol import Batch, SyncTicket
from storage.store.settings import GroupCommitSettings, StoreSettings
from storage.store.store import Store
from storage.store.store_sync import StoreSync
from storage.store.wal_store import WalStore
from tests.patience import PATIENCE_S
from tests.simulation.model_store import ModelDisk, ModelStore
from wire.links.reactor_hook import early_reads

SETTINGS = GroupCommitSettings(delay_s=0.002, batch_ops=10, small_batch_ops=4, batch_ops_max=50, marker_idle_s=1.0)


def _row(number: int) -> Batch:
    return [(b"k%06d" % number, b"v")]


class _Disk:
    """The shell for the core alone: commits at once, syncs end on request."""

    def __init__(self, settings: GroupCommitSettings = SETTINGS) -> None:
        self.core = GroupCommit(settings)
        self.now = 0.0
        self.transaction_no = 0
        self.commits: list[int] = []  # rows of each
        self.syncing: int | None = None
        self.durable = 0
        self.deadline = 0.0
        self.marker_syncs = 0

    def event(self, event: Submitted | Committed | LogSynced | CommitWaited) -> None:
        ready = self.core.handle(self.now, event)
        self.durable = ready.durable if ready.durable is not None else self.durable
        if ready.transaction is not None:
            assert not ready.sync
            self.transaction_no += 1
            self.commits.append(len(ready.transaction))
            self.event(Committed(self.transaction_no))
            return
        if ready.sync:
            assert self.syncing is None, "one sync at a time"
            self.syncing = self.transaction_no
            self.marker_syncs += ready.marker
        self.deadline = ready.deadline
        if self.deadline <= self.now:
            self.event(CommitWaited())

    def submit(self, rows: int = 1) -> None:
        self.event(Submitted([_row(number) for number in range(rows)]))

    def end_sync(self) -> None:
        assert self.syncing is not None
        covered, self.syncing = self.syncing, None
        self.event(LogSynced(covered))


def test_single_write_is_committed_at_once() -> None:
    """Empty queue, idle disk: committed and synced at once, durable when the sync ends."""
    disk = _Disk()
    disk.submit()
    assert (disk.commits, disk.syncing, disk.durable) == ([1], 1, 0)
    disk.end_sync()
    assert disk.durable == 1
    disk.submit()
    assert disk.syncing == 2


def test_commit_during_a_sync_waits_for_the_next_sync() -> None:
    """Batch 2 commits while batch 1 syncs; the end of that sync does not make batch 2 durable."""
    disk = _Disk()
    disk.submit()
    disk.submit(10)  # the batch is full: no wait
    assert disk.commits == [1, 10]
    disk.end_sync()
    assert disk.durable == 1
    assert disk.syncing == 2
    disk.end_sync()
    assert disk.durable == 11


def test_group_commit_pipeline_is_one_deep() -> None:
    """While batch 2 waits for its sync, batch 3 grows; a slow disk makes it larger."""
    disk = _Disk()
    disk.submit()
    disk.submit(10)
    disk.submit(30)
    disk.now += 1
    disk.event(CommitWaited())
    assert disk.commits == [1, 10]
    disk.end_sync()
    assert disk.commits == [1, 10, 30]
    disk.submit(70)
    disk.end_sync()
    assert disk.commits == [1, 10, 30, 50], "one transaction is bounded"


def test_small_batch_during_a_sync_waits_for_the_delay() -> None:
    """It is committed after the delay, or when the sync has ended and batches are small."""
    disk = _Disk()
    disk.submit()
    disk.submit(2)
    assert disk.commits == [1]
    assert disk.deadline == pytest.approx(0.002)
    disk.now = 0.002
    disk.event(CommitWaited())
    assert disk.commits == [1, 2]


def test_syncs_under_load_start_at_most_once_per_delay() -> None:
    """With large batches an idle disk waits for the delay since the last sync began: batches grow, not syncs."""
    disk = _Disk()
    for _ in range(20):
        disk.submit(20)
        if disk.syncing is not None:
            disk.end_sync()
        disk.now += 0.0001
    started = len(disk.commits)
    disk.submit(3)
    while disk.syncing is not None:
        disk.end_sync()
    disk.submit(3)
    assert len(disk.commits) <= started + 2
    assert disk.deadline <= disk.now + SETTINGS.delay_s


def test_marker_is_synced_after_idle_time() -> None:
    """An idle store has a durable marker after one sync."""
    disk = _Disk()
    disk.submit()
    disk.end_sync()
    assert disk.deadline == 1.0
    disk.now = 1.0
    disk.event(CommitWaited())
    assert disk.marker_syncs == 1
    disk.end_sync()
    assert disk.deadline == float("inf")
    assert disk.durable == 1


@pytest.mark.parametrize("seed", range(20))
def test_random_schedules_keep_order_and_end_durable(seed: int) -> None:
    """Each batch is committed once and in order; durable batches never exceed a finished sync."""
    rng, core = random.Random(seed), GroupCommit(SETTINGS)
    now, submitted, transaction_no, durable = 0.0, 0, 0, 0
    seen: list[bytes] = []
    batches_at: dict[int, int] = {}  # commit -> number of batches up to it
    running: deque[int] = deque()

    def perform(ready: GroupCommitReady) -> None:
        nonlocal transaction_no, durable
        if ready.durable is not None:
            assert ready.durable == batches_at[ready.durable_transaction_no] >= durable
            durable = ready.durable
        if ready.transaction is not None:
            seen.extend(key for key, _ in ready.transaction)
            transaction_no += 1
            batches_at[transaction_no] = len(seen)
            perform(core.handle(now, Committed(transaction_no)))
        elif ready.sync:
            assert not running
            running.append(transaction_no)

    for step in range(600):
        now += rng.choice((0.0, 0.0005, 0.003))
        if step < 500 and rng.random() < 0.5:
            count = rng.choice((1, 1, 5, 40))
            perform(core.handle(now, Submitted([_row(submitted + index) for index in range(count)])))
            submitted += count
        elif running and rng.random() < 0.6:
            covered = running.popleft()
            perform(core.handle(now, LogSynced(covered)))
            assert durable <= batches_at[covered]
        else:
            perform(core.handle(now, CommitWaited()))
    while running or core.durable < submitted:
        now += 0.01
        perform(core.handle(now, LogSynced(running.popleft()) if running else CommitWaited()))
    assert seen == [key for number in range(submitted) for key, _ in _row(number)]
    assert core.backlog_bytes == 0


# -- the shell ----------------------------------------------------------------------------------------------------


@pytest.fixture
def disk() -> Iterator[ModelDisk]:
    """Return a model disk with an open store behind it."""
    yield ModelDisk()


def _open(disk: ModelDisk) -> ModelStore:
    return ModelStore.open(disk, "c", "n", StoreSettings())


_NO_FLOOR = StoreSettings(free_space_floor_bytes=0, free_space_floor_percent=0)


class _Threads:
    """Runs the tickets of a model's store, each on a worker thread."""

    def __init__(self) -> None:
        self._begun, self._tickets = trio.open_memory_channel[SyncTicket](1)

    def begin(self, ticket: SyncTicket) -> bool:
        self._begun.send_nowait(ticket)
        return False

    async def attend(self, ended: Callable[[], None]) -> None:
        async for ticket in self._tickets:
            await trio.to_thread.run_sync(ticket.run)
            ended()

    def close(self) -> None:
        self._tickets.close()


def _committer(
    store: ModelStore, on_durable: Callable[[int], None], settings: GroupCommitSettings | None = None
) -> GroupCommitter:
    return GroupCommitter(store, on_durable, settings, _Threads())


@asynccontextmanager
async def _running(committer: GroupCommitter):  # type: ignore[no-untyped-def]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(committer.run)
        yield
        nursery.cancel_scope.cancel()


async def test_batches_become_durable_in_order(disk: ModelDisk) -> None:
    """Announced batches are on disk and covered by the marker."""
    store, announced = _open(disk), list[int]()

    def on_durable(batch: int) -> None:
        announced.append(batch)
        assert disk.acked_up_to <= disk.durable_transaction_no
        assert all(b"k%06d" % number in disk.durable for number in range(batch))

    committer = _committer(store, on_durable)
    async with _running(committer):
        for number in range(500):
            assert committer.submit(_row(number)) == number + 1
            if number % 7 == 0:
                await trio.lowlevel.checkpoint()
        with trio.fail_after(PATIENCE_S):
            await committer.wait_durable(500)
    assert announced == sorted(announced)
    assert announced[-1] == 500
    assert committer.commits < 500


async def test_failed_sync_leaves_run_without_announcement(disk: ModelDisk) -> None:
    """EIO: no acknowledgement, waiting callers get the error, and the service ends with it (F17)."""
    store, announced = _open(disk), list[int]()
    disk.fail_sync = True
    committer = _committer(store, announced.append)
    committer.submit(_row(1))

    async def wait() -> None:
        with pytest.raises(StoreFailed):
            await committer.wait_durable(1)

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            with pytest.raises(SyncFailed):
                await committer.run()
    assert announced == []
    assert disk.acked_up_to == 1


async def test_sync_that_fails_at_once_is_not_announced(disk: ModelDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread's own errno, in the iteration that begins the sync: a pipe cannot be synced."""
    store, announced = _open(disk), list[int]()
    ends = os.pipe()
    monkeypatch.setattr(store, "begin_sync", lambda **_: StoreSync(store.transaction_no, os.dup(ends[1]), None))
    committer = GroupCommitter(store, announced.append)
    committer.submit(_row(1))
    with trio.fail_after(PATIENCE_S), pytest.raises(SyncFailed, match="Invalid argument"):
        await committer.run()
    assert announced == []
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("wait_s", [log_syncs.WAIT_S, 0.0], ids=["at once", "by the eventfd"])
@pytest.mark.parametrize("early", [False, True], ids=["by a task", "early"])
async def test_sync_thread_syncs_files_in_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_s: float, early: bool
) -> None:
    """Some end while the loop waits for them, others are signalled by the eventfd; each of them once."""
    monkeypatch.setattr(log_syncs, "WAIT_S", wait_s)
    store, announced = Store.open(tmp_path / "store", "c", "n", _NO_FLOOR), list[int]()
    with early_reads((lambda *_: None) if early else None) as reads:
        assert (reads is not None) == early
        committer = GroupCommitter(store, announced.append, syncs=log_syncs.LogSyncs(reads))
        async with _running(committer):
            for number in range(200):
                committer.submit(_row(number))
                await trio.lowlevel.checkpoint()
            with trio.fail_after(PATIENCE_S):
                await committer.wait_durable(200)
            assert announced == sorted(set(announced)) and announced[-1] == 200
            assert store.acked_up_to == store.transaction_no
    store.close()


@pytest.mark.parametrize("large", [19_000, 150_000, 600_000], ids=["fits", "fits an empty region", "fits none"])
async def test_commit_to_a_full_log_does_not_sync_in_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    """Many small rows, then few large ones, faster than small ones are flushed: a region of the log would be full."""
    monkeypatch.setattr(wal_store, "GENERATION_BYTES", 50_000)
    monkeypatch.setattr(wal_store, "FLUSHED_BYTES_MAX", 20_000)
    monkeypatch.setattr(write_ahead, "REGION_BYTES", 200_000)
    monkeypatch.setattr(log_syncs, "WAIT_S", 0.0)  # each sync lasts as long as the loop is busy
    store = WalStore.open(tmp_path / "store", "c", "n", _NO_FLOOR)
    monkeypatch.setattr(os, "fdatasync", _refuse)
    settings = GroupCommitSettings(delay_s=0.0, batch_ops_max=1_000, batch_bytes=1, batch_bytes_max=20_000)
    committer = GroupCommitter(store, lambda _: None, settings)
    rows: dict[bytes, bytes] = {}
    async with _running(committer):
        for number in range(60):
            small = {b"%05d" % (number * 1_000 + at): b"x" * 10 for at in range(1_000 if number % 20 < 4 else 0)}
            long = {b"%05d-%d" % (number, at): b"%d" % number * 9_500 for at in range(large // 19_000)}
            rows |= (added := small or long)
            committer.submit(list(added.items()))
        with trio.fail_after(PATIENCE_S):
            await committer.wait_durable(60)
    monkeypatch.undo()
    assert dict(store.scan(b"", None, len(rows) + 1)) == rows
    copy = tmp_path / "killed"
    copy.mkdir()
    for file in tmp_path.glob("store*"):
        shutil.copy(file, copy / file.name)
    killed = WalStore.open(copy / "store", "c", "n", _NO_FLOOR)
    assert dict(killed.scan(b"", None, len(rows) + 1)) == rows
    killed.close()
    store.close()


def _refuse(_: int) -> None:
    raise AssertionError("a sync in the loop")


async def test_sync_that_fails_later_ends_the_committer(disk: ModelDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop did not wait for it: the error arrives in its I/O wait."""
    monkeypatch.setattr(log_syncs, "WAIT_S", 0.0)
    store, announced = _open(disk), list[int]()
    ends = os.pipe()
    monkeypatch.setattr(store, "begin_sync", lambda **_: StoreSync(store.transaction_no, os.dup(ends[1]), None))
    with early_reads(lambda *_: None) as reads:
        committer = GroupCommitter(store, announced.append, syncs=log_syncs.LogSyncs(reads))
        committer.submit(_row(1))
        with trio.fail_after(PATIENCE_S), pytest.raises(SyncFailed, match="Invalid argument"):
            await committer.run()
    assert announced == []
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("poison", ["before", "after"])
async def test_batch_with_unknown_outcome_is_written_once(disk: ModelDisk, poison: str) -> None:
    """A batch whose commit raised is in the store or written again, never twice and never lost."""
    store = _open(disk)
    committer = _committer(store, lambda _: None)
    disk.poison = poison
    async with _running(committer):
        committer.submit(_row(1))
        with trio.fail_after(PATIENCE_S):
            await committer.wait_durable(1)
    assert disk.durable_transaction_no == 2
    assert store.get(b"k000001") == b"v"


async def test_batch_that_fails_twice_is_fatal(disk: ModelDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """No retry is left."""
    store = _open(disk)
    real = store.write

    def poisoned(batch: Batch, *, reclaiming: bool = False) -> int:
        disk.poison = "before"
        return real(batch, reclaiming=reclaiming)

    monkeypatch.setattr(store, "write", poisoned)
    committer = _committer(store, lambda _: None)
    committer.submit(_row(1))
    with trio.fail_after(PATIENCE_S), pytest.raises(StoreFatal, match="twice"):
        await committer.run()


async def test_slow_disk_congests_the_committer_and_recovers(disk: ModelDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches submitted during a long sync are counted: edges wait instead of filling memory (F16)."""
    import threading

    store, gate = _open(disk), threading.Event()
    real = disk.sync

    def slow(transaction_no: int) -> None:
        gate.wait(PATIENCE_S)
        real(transaction_no)

    monkeypatch.setattr(disk, "sync", slow)
    committer = _committer(store, lambda _: None, GroupCommitSettings(backlog_bytes_max=100_000, batch_bytes=1000))
    async with _running(committer):
        for number in range(300):
            committer.submit([(b"k%06d" % number, b"v" * 1000)])
            await trio.lowlevel.checkpoint()
        assert committer.congested
        gate.set()
        with trio.fail_after(PATIENCE_S):
            await committer.wait_durable(300)
        assert not committer.congested
    assert len(disk.durable) == 300


async def test_batches_of_a_busy_loop_are_written_together(disk: ModelDisk) -> None:
    """A few of them: commits are not delayed by a loop that never idles, nor by one that stops after its last batch."""
    store = _open(disk)
    committer = _committer(store, lambda _: None)
    async with _running(committer):
        await trio.testing.wait_all_tasks_blocked()
        for number in range(GATHERED_MAX - 1):
            committer.submit(_row(number), more=True)
            await trio.testing.wait_all_tasks_blocked()
        assert committer.commits == 0
        committer.submit(_row(8), more=True)
        with trio.fail_after(PATIENCE_S):
            while committer.durable < GATHERED_MAX:
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert committer.commits == 1
        last = committer.submit(_row(9), more=True)
        with trio.fail_after(PATIENCE_S):
            await committer.wait_durable(last)
