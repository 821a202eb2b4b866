"""Checkpoints of the data file beside the loop: the loop does not wait for their syncs, and writes do not break them.

Durability under kills and power losses: ``test_store_crash.py``. A node: ``tests/e2e/test_slow_store.py``.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing

from storage.store import lsm_file, wal_store, write_ahead
from storage.store.errors import SyncFailed
from storage.store.group_committer import GroupCommitter
from storage.store.protocol import Batch, SyncTicket
from storage.store.settings import GroupCommitSettings, StoreSettings
from storage.store.store import Store
from storage.store.store_sync import StoreSync
from storage.store.wal_store import WalStore
from tests.patience import PATIENCE_S
from tests.storage.sync_shim import compiled_shim

ROOT = Path(__file__).parents[2]
SETTINGS = StoreSettings(free_space_floor_bytes=0, free_space_floor_percent=0)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a store with small regions whose checkpoints are due soon."""
    monkeypatch.setattr(lsm_file, "OPTIONS", lsm_file.OPTIONS | {"autoflush": 64, "autocheckpoint": 128})
    monkeypatch.setattr(wal_store, "GENERATION_BYTES", 50_000)
    monkeypatch.setattr(write_ahead, "REGION_BYTES", 400_000)
    return tmp_path / "store.lsm"


def _row(number: int, size: int = 1_000) -> Batch:
    return [(b"\x00\x01s%06d" % number, b"%06d" % number * (size // 6))]


def _write_until_due(store: WalStore, begin: int = 0) -> tuple[SyncTicket, int]:
    """Commit rows durably until a checkpoint begins; return its first step and the number of rows."""
    for number in range(begin, begin + 10_000):
        store.write(_row(number))
        store.begin_sync().run()
        store.acked(store.transaction_no)
        if (step := store.checkpoint()) is not None:
            return step, number + 1
    raise AssertionError("no checkpoint is due")


def _rows(count: int) -> list[tuple[bytes, bytes]]:
    return [(key, value) for number in range(count) for key, value in _row(number) if value is not None]


def test_serving_loop_waits_for_no_sync(tmp_path: Path) -> None:
    """While a store serves, all syncs of the library run on a thread."""
    folder, names = tmp_path / "live", tmp_path / "names"
    folder.mkdir()
    environment = {"LD_PRELOAD": str(compiled_shim(tmp_path)), "SHIM_FOLDER": str(folder), "SHIM_NAMES": str(names)}
    command = [sys.executable, str(ROOT / "tests/storage/serving_child.py"), str(folder / "store.lsm"), str(names)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, check=True, timeout=PATIENCE_S)
    lines = names.read_text().splitlines()
    served = lines[lines.index("serving") + 1 : lines.index("ended")]
    assert [name for name in served if name.startswith("loop ")] == []
    assert served.count("store.lsm-sums") >= 5, "checkpoints were taken"
    assert served.count("store.lsm") >= 2 * (served.count("store.lsm-sums") - 1), "the last one may have been cut off"


def test_checkpoint_sync_blocks_flushes(path: Path) -> None:
    """From its beginning until its header is durable; then flushes continue."""
    store = WalStore.open(path, "c", "n", SETTINGS)
    step, count = _write_until_due(store)
    size = len(store.raw_scan(b"\x00", 1 << 20))
    following: SyncTicket | None = step
    while following is not None:
        store.write(_row(count))
        count += 1
        store.work()
        assert len(store.raw_scan(b"\x00", 1 << 20)) == size
        following.run()
        following = store.checkpoint(following)
    for _ in range(100):
        store.write(_row(count))
        store.begin_sync().run()
        store.acked(store.transaction_no)
        count += 1
    assert len(store.raw_scan(b"\x00", 1 << 20)) > size
    assert store.scan(b"", None, 1 << 20) == _rows(count)
    store.close()


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("how", ["commit", "flush", "close"])
def test_write_during_a_checkpoint_is_complete(path: Path, how: str, steps: int) -> None:
    """A commit to a full log, a flush or a close: the checkpoint is void, or its header is synced first."""
    store = WalStore.open(path, "c", "n", SETTINGS)
    step, count = _write_until_due(store)
    following: SyncTicket | None = step
    for _ in range(steps):
        assert following is not None
        following.run()
        following = store.checkpoint(following)
    if how == "commit":
        large = [(b"\x00\x02s%06d" % number, b"x" * 500_000) for number in range(2)]
        store.write(large)
        store.begin_sync().run()
        store.acked(store.transaction_no)
        assert store.scan(b"\x00\x02", None, 9) == large
        store.write([(key, None) for key, _ in large])
    elif how == "flush":
        store.flush()
    while following is not None and how != "close":
        following.run()
        following = store.checkpoint(following)
    if how != "close":
        step, count = _write_until_due(store, count)
        step.run()
    store.close()
    again = Store.open(path, "c", "n", SETTINGS)
    assert again.scan(b"", None, 1 << 20) == _rows(count)
    again.close()


class _ByHand:
    """Syncs that end at a test's request."""

    def __init__(self) -> None:
        self.tickets: list[SyncTicket] = []
        self._end: Callable[[], None] = lambda: None

    def begin(self, ticket: SyncTicket) -> bool:
        self.tickets.append(ticket)
        return False

    async def attend(self, ended: Callable[[], None]) -> None:
        self._end = ended
        await trio.sleep_forever()

    def end(self) -> None:
        self.tickets.pop().run()
        self._end()

    def close(self) -> None:
        pass


async def test_commits_to_a_crowded_log_wait_for_the_checkpoint(path: Path) -> None:
    """Commits continue until the log is full; when the checkpoint has ended all are written."""
    store, by_hand = WalStore.open(path, "c", "n", SETTINGS), _ByHand()
    settings = GroupCommitSettings(delay_s=0.0, batch_bytes_max=20_000)
    committer = GroupCommitter(store, lambda _: None, settings, checkpoint_syncs=by_hand)
    count, batch = 0, 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(committer.run)
        await trio.testing.wait_all_tasks_blocked()
        while not store.held:
            batch = committer.submit(_row(count))
            count += 1
            with trio.fail_after(PATIENCE_S):
                while committer.durable < batch and not store.held:
                    await trio.lowlevel.checkpoint()
        assert by_hand.tickets and not store.makes_room
        written = store.transaction_no
        for _ in range(20):
            batch = committer.submit(_row(count))
            count += 1
            await trio.testing.wait_all_tasks_blocked(0.001)
        assert store.transaction_no == written
        while by_hand.tickets:
            by_hand.end()
        with trio.fail_after(PATIENCE_S):
            await committer.wait_durable(batch)
        nursery.cancel_scope.cancel()
    assert store.scan(b"", None, 1 << 20) == _rows(count)
    store.close()


async def test_held_commit_flushes_rows_in_slices(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The immutable memtable is not empty when the active one is crowded: the loop continues between two slices."""
    monkeypatch.setattr(lsm_file, "OPTIONS", lsm_file.OPTIONS | {"autocheckpoint": 16_384})  # none
    for name, value in (("FLUSHED_ROWS_MAX", 2), ("FLUSHED_ROWS_MIN", 1), ("FLUSHED_PER_ROW", 0)):
        monkeypatch.setattr(wal_store, name, value)
    store = WalStore.open(path, "c", "n", SETTINGS)
    committer = GroupCommitter(store, lambda _: None, GroupCommitSettings(delay_s=0.0))
    sizes, held, batch, count = [0], 0, 0, 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(committer.run)
        for count in range(1, 201):
            batch = committer.submit([row for number in range(20) for row in _row(count * 20 + number, 120)])
            sizes.append(len(store.raw_scan(b"\x00", 1 << 20)))
            while committer.durable < batch or store.makes_room:
                held += store.makes_room
                await trio.lowlevel.checkpoint()
                sizes.append(len(store.raw_scan(b"\x00", 1 << 20)))
        nursery.cancel_scope.cancel()
    assert held > 10
    assert max(later - size for size, later in pairwise(sizes)) <= 2 * 2, "with a commit, and with an iteration"
    assert len(store.scan(b"", None, 1 << 20)) == 20 * count
    store.close()


async def test_failed_checkpoint_sync_ends_the_committer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like one of the log: a pipe cannot be synced."""
    store, ends = WalStore.open(path, "c", "n", SETTINGS), os.pipe()
    committer = GroupCommitter(store, lambda _: None)
    monkeypatch.setattr(store, "checkpoint", lambda *_: StoreSync(0, os.dup(ends[1]), None))
    committer.submit(_row(1))
    with trio.fail_after(PATIENCE_S), pytest.raises(SyncFailed, match="Invalid argument"):
        await committer.run()
    store.abandon()
    for end in ends:
        os.close(end)
