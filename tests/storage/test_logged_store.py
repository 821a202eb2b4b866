"""The write-ahead log of a store: rows that never reach the data file, and damaged files.

The store's contract, and durability under kills and power losses: ``test_store_contract.py``,
``test_store_random.py``, ``test_store_crash.py``.
"""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from storage.state import keys
from storage.store import wal_store, write_ahead
from storage.store.errors import BatchUnknown, StoreDamaged, StoreIncomplete
from storage.store.settings import StoreSettings
from storage.store.store import Store
from storage.store.wal_store import WalStore
from tests.storage.faulty_library import FaultyLibrary

SETTINGS = StoreSettings(free_space_floor_bytes=0, free_space_floor_percent=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a test's store."""
    return tmp_path / "store.lsm"


def _sync(store: WalStore) -> None:
    store.begin_sync().run()
    store.acked(store.transaction_no)


def _kill(path: Path, target: Path) -> Path:
    """Copy the files of an open store, as after kill -9."""
    target.mkdir()
    for suffix in ("", "-log", "-sums", "-acked", "-ahead"):
        (target / f"store.lsm{suffix}").write_bytes(path.with_name(path.name + suffix).read_bytes())
    return target / "store.lsm"


def _in_data_file(store: WalStore) -> list[bytes]:
    """Return the keys in the data file, without those of the store itself."""
    return [key for key, _ in store.raw_scan(b"\x00", 1 << 30) if not key.startswith(b"\xff\xff")]


def test_quickly_consumed_messages_never_reach_the_data_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a queue are written and deleted in one memtable: only its last rows and the newest META are flushed."""
    monkeypatch.setattr(wal_store, "GENERATION_BYTES", 50_000)
    store = WalStore.open(path, "c", "n", SETTINGS)
    for number in range(1, 2_000):
        consumed = [(keys.queue_key(1, 7, number - 3), None)] if number > 3 else []
        meta = (keys.meta_key(1), number.to_bytes(8, "big"))
        store.write([(keys.queue_key(1, 7, number), b"x" * 100), meta, *consumed])
        _sync(store)
    store.close()
    kept = Store.open(path, "c", "n", SETTINGS)
    assert [key for key, _ in kept.scan(b"", None, 100)] == [
        keys.meta_key(1),
        *(keys.queue_key(1, 7, number) for number in range(1_997, 2_000)),
    ]
    kept.close()


def test_messages_consumed_in_the_next_memtable_never_reach_the_data_file(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In-flight messages at the end of a memtable are deleted in the next one, before the flush."""
    monkeypatch.setattr(wal_store, "GENERATION_BYTES", 50_000)
    store = WalStore.open(path, "c", "n", SETTINGS)
    seen: set[bytes] = set()
    for number in range(1, 2_000):
        consumed = [(keys.queue_key(1, 7, number - 50), None)] if number > 50 else []
        store.write([(keys.queue_key(1, 7, number), b"x" * 100), (keys.meta_key(1), b"%d" % number), *consumed])
        _sync(store)
        seen.update(_in_data_file(store))
        if number % 500 == 0:
            killed = WalStore.open(_kill(path, tmp_path / str(number)), "c", "n", SETTINGS)
            assert len(killed.scan(b"", None, 100)) == 51
            killed.close()
    assert seen == set()  # META is rewritten with each message
    assert store.unmoved_bytes < 4 * 50_000  # of 480 000: the memtables alternated
    store.close()


def test_undurable_deletion_does_not_skip_the_flush_of_a_row(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power loss would revert it, and the region with the row would be reused."""
    monkeypatch.setattr(wal_store, "GENERATION_BYTES", 5_000)
    store = WalStore.open(path, "c", "n", SETTINGS)
    for number in range(1, 60):
        store.write([(keys.queue_key(1, 7, number), b"x" * 100)])
    _sync(store)
    store.write([])  # the next memtable begins
    for number in range(1, 60):
        store.write([(keys.queue_key(1, 7, number), None), (keys.meta_key(1), b"x" * 100)])
    assert {keys.queue_key(1, 7, number) for number in range(1, 30)} <= set(_in_data_file(store))
    store.abandon()


def test_deletion_of_a_flushed_key_is_flushed(path: Path) -> None:
    """A queue row in the data file, rewritten and then deleted, does not come back."""
    key = keys.queue_key(1, 7, 5)
    first = Store.open(path, "c", "n", SETTINGS)
    first.write([(key, b"old"), (keys.queue_key(1, 7, 6), b"other")])
    first.close()
    store = WalStore.open(path, "c", "n", SETTINGS)
    store.write([(key, b"again")])
    assert store.get(key) == b"again"
    store.write([(key, None)])
    assert store.get(key) is None
    store.close()
    again = WalStore.open(path, "c", "n", SETTINGS)
    assert again.scan(b"", None, 9) == [(keys.queue_key(1, 7, 6), b"other")]
    again.close()


def test_rows_are_flushed_after_their_commits_are_durable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library may write its log to disk at any time; after a power loss our log would be behind it."""
    monkeypatch.setattr(wal_store, "GENERATION_BYTES", 2_000)
    store = WalStore.open(path, "c", "n", SETTINGS)
    for number in range(200):
        store.write([(b"\x00\x01s%05d" % number, b"v" * 50)])
    assert _in_data_file(store) == []
    _sync(store)
    store.write([])
    assert _in_data_file(store) != []
    store.abandon()


def test_damaged_log_makes_the_store_incomplete(path: Path, tmp_path: Path) -> None:
    """Recovery ends before a flipped bit, and the marker detects it."""
    store = WalStore.open(path, "c", "n", SETTINGS)
    for number in range(200):
        store.write([(b"k%05d" % number, b"v" * 100)])
    _sync(store)
    size = path.with_name("store.lsm-ahead").stat().st_size
    for trial in range(20):
        copy = _kill(path, tmp_path / f"copy{trial}")
        ahead = copy.with_name("store.lsm-ahead")
        data = bytearray(ahead.read_bytes())
        data[(size * trial) // 20 + trial % 13] ^= 1 << trial % 8
        ahead.write_bytes(data)
        with pytest.raises(StoreIncomplete):
            WalStore.open(copy, "c", "n", SETTINGS)
    lost = _kill(path, tmp_path / "lost")
    lost.with_name("store.lsm-ahead").unlink()
    with pytest.raises(StoreIncomplete):
        Store.open(lost, "c", "n", SETTINGS)
    whole = _kill(path, tmp_path / "whole")
    opened = Store.open(whole, "c", "n", SETTINGS)  # as the tools do
    assert opened.scan(b"", None, 1_000) == store.scan(b"", None, 1_000)
    opened.close()
    store.close()


def test_log_remains_of_an_earlier_process_are_not_replayed(path: Path, tmp_path: Path) -> None:
    """After a power loss, valid commits of the previous process follow the new ones, with the next numbers."""
    store = WalStore.open(path, "c", "n", SETTINGS)
    for number in range(50):
        store.write([(b"k%05d" % number, b"old")])
    copy = _kill(path, tmp_path / "torn")
    ahead = copy.with_name("store.lsm-ahead")
    data = bytearray(ahead.read_bytes())
    record = len(data) // 50
    data[record * 10 + 20] ^= 1  # commits from the 11th on were incomplete
    ahead.write_bytes(data)
    store.abandon()
    again = WalStore.open(copy, "c", "n", SETTINGS)
    newest = again.transaction_no
    for number in range(5):
        again.write([(b"n%05d" % number, b"new")])  # as long as the old ones, at the same offsets
    last = _kill(copy, tmp_path / "last")
    opened = Store.open(last, "c", "n", SETTINGS)
    assert opened.transaction_no == newest + 5
    assert [value for _, value in opened.scan(b"n", b"o", 9)] == [b"new"] * 5
    opened.close()
    again.close()


def test_space_of_large_commits_is_reused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows are stored after both regions until they are flushed: the file stays small."""
    monkeypatch.setattr(wal_store, "GENERATION_BYTES", 5_000)
    monkeypatch.setattr(write_ahead, "REGION_BYTES", 10_000)
    store = WalStore.open(path, "c", "n", SETTINGS)
    sizes = []
    for number in range(100):
        store.write([(b"k", b"%03d" % number * 10_000), (b"n%03d" % number, b"")])
        _sync(store)
        sizes.append(path.with_name("store.lsm-ahead").stat().st_size)
    assert len(store.scan(b"", None, 1_000)) == 101
    assert max(sizes) <= 2 * 10_000 + 5 * 30_100
    store.close()


def test_flush_spreads_rows_over_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evenly, and all are flushed when the next memtable is as large."""
    monkeypatch.setattr(wal_store, "GENERATION_BYTES", 200_000)
    store = WalStore.open(path, "c", "n", SETTINGS)
    store.write([(b"a%04d" % number, b"x" * 100) for number in range(2_000)])
    _sync(store)
    sizes = [0]
    for number in range(45):
        store.write([(b"b%04d-%d" % (number, at), b"x" * 100) for at in range(40)])
        _sync(store)
        sizes.append(sum(key.startswith(b"a") for key in _in_data_file(store)))
    assert sizes[-1] == 2_000
    assert max(later - sooner for sooner, later in pairwise(sizes)) <= 80, "40 rows came with each"
    store.close()


@pytest.mark.parametrize("rows", [1, 8, 60, 400])
def test_flush_rate_follows_the_commit_size(path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """A memtable is empty when the next one is as large: remaining rows are flushed in slices, no commit is held."""
    monkeypatch.setattr(wal_store, "GENERATION_BYTES", 100_000)
    monkeypatch.setattr(write_ahead, "REGION_BYTES", 400_000)
    monkeypatch.setattr(wal_store, "FLUSHED_ROWS_MIN", 2)
    monkeypatch.setattr(wal_store, "FLUSHED_WITH_COMMIT", 10)
    monkeypatch.setattr(wal_store, "FLUSHED_ROWS_MAX", 60)
    store = WalStore.open(path, "c", "n", SETTINGS)
    before = 0
    for number in range(6_000 // rows):
        store.write([(b"%05d" % (number * rows + at), b"x" * 84) for at in range(rows)])
        _sync(store)
        moved = [len(_in_data_file(store))]
        while store.makes_room:
            store.make_room()
            moved.append(len(_in_data_file(store)))
        assert max(later - sooner for sooner, later in pairwise([before, *moved])) <= 60, "in one piece"
        before = moved[-1]
        assert not store.held and not store.crowded
        assert store.unmoved_bytes <= 200_000 + 2 * 106 * rows, "two generations, and two commits"
    assert before >= 3_000
    store.close()


def test_rows_of_a_large_commit_are_flushed_in_slices(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are counted by their mean length, and those of one commit may all be longer."""
    monkeypatch.setattr(wal_store, "GENERATION_BYTES", 100_000)
    monkeypatch.setattr(wal_store, "FLUSHED_BYTES_MAX", 50_000)
    store = WalStore.open(path, "c", "n", SETTINGS)
    store.write([(b"a%04d" % number, b"x" * 20_000) for number in range(50)])
    store.write([(b"b%04d" % number, b"") for number in range(10_000)])
    _sync(store)
    sizes = [0]
    for number in range(2_000):
        store.write([(b"c%04d" % number, b"x" * 500)])
        _sync(store)
        sizes.append(sum(key.startswith(b"a") for key in _in_data_file(store)) if sizes[-1] < 50 else 50)
    assert sizes[-1] == 50
    assert max(later - sooner for sooner, later in pairwise(sizes)) <= 6, "some 100 kB with a commit"
    store.close()


def test_commit_to_a_full_log_goes_to_the_data_file(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a commit, and the preceding ones, are complete after a kill; then the log is used again."""
    monkeypatch.setattr(write_ahead, "REGION_BYTES", 250)
    store = WalStore.open(path, "c", "n", SETTINGS)
    model: dict[bytes, bytes] = {}
    rng = random.Random(1)
    for number in range(60):
        key, value = b"k%03d" % rng.randrange(30), rng.randbytes(rng.choice([10, 9_000, 15_000]))
        model[key] = value
        store.write([(key, value)])
        if number % 3 == 0:
            _sync(store)
        if number % 10 == 9:
            copy = Store.open(_kill(path, tmp_path / f"kill{number}"), "c", "n", SETTINGS)
            assert dict(copy.scan(b"", None, 100)) == model
            copy.close()
    store.close()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("method", ["begin", "insert", "commit"])
def test_exception_during_a_flush_loses_no_row(
    path: Path, monkeypatch: pytest.MonkeyPatch, method: str, after: bool
) -> None:
    """The data file is reopened and the rows are flushed again; the current commit is in the log."""
    library = FaultyLibrary(monkeypatch)
    monkeypatch.setattr(wal_store, "GENERATION_BYTES", 1_000)
    store = WalStore.open(path, "c", "n", SETTINGS)
    for number in range(40):
        if number == 20:
            library.fail(method, after=after)
        store.write([(b"k%03d" % number, b"v" * 50)])
        _sync(store)
    assert len(store.scan(b"", None, 100)) == 40
    store.close()
    again = WalStore.open(path, "c", "n", SETTINGS)
    assert len(again.scan(b"", None, 100)) == 40
    again.close()


def test_row_written_directly_and_again_can_be_deleted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the data file, which it reached directly: its deletion has to reach it too."""
    monkeypatch.setattr(write_ahead, "REGION_BYTES", 80)
    store = WalStore.open(path, "c", "n", SETTINGS)
    store.write([(keys.queue_key(1, 7, 1), b"first")])
    store.write([(keys.queue_key(1, 7, 2), b"x" * 20_000)])
    _sync(store)
    store.write([(keys.queue_key(1, 7, 2), b"sent")])
    store.write([(keys.queue_key(1, 7, 2), None)])
    assert store.scan(b"", None, 9) == [(keys.queue_key(1, 7, 1), b"first")]
    store.close()


def test_unwritable_log_leaves_the_store_unchanged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome is known: the commit is not in the store, and the next one takes its number."""
    store = WalStore.open(path, "c", "n", SETTINGS)
    number = store.write([(b"a", b"1")])

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("storage.store.write_ahead.os.pwrite", full)
        with pytest.raises(BatchUnknown):
            store.write([(b"b", b"2")])
    assert (store.transaction_no, store.get(b"b")) == (number, None)
    assert store.write([(b"c", b"3")]) == number + 1
    store.close()
    again = WalStore.open(path, "c", "n", SETTINGS)
    assert again.scan(b"", None, 9) == [(b"a", b"1"), (b"c", b"3")]
    again.close()


def test_damaged_page_is_detected_by_flush_or_read(path: Path) -> None:
    """The data file's own checks also apply behind the log."""
    store = WalStore.open(path, "c", "n", SETTINGS)
    for number in range(3_000):
        store.write([(b"k%05d" % number, b"v" * 200)])
    store.close()
    data = bytearray(path.read_bytes())
    for at in range(8_192 + 100, len(data), 4_096):
        data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreDamaged):
        again = WalStore.open(path, "c", "n", SETTINGS)
        try:
            again.scan(b"", None, 1 << 30)
        finally:
            again.abandon()
