"""The store contract, which holds for lsm-db, the logged store and the model of the simulation."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.store.errors import StoreBusy, StoreClosed, StoreMismatch, ValueTooLarge
from storage.store.protocol import KeyValueStore
from storage.store.settings import StoreSettings
from storage.store.store import Store
from storage.store.wal_store import WalStore
from tests.simulation.model_store import ModelDisk, ModelStore

SETTINGS = StoreSettings(free_space_floor_bytes=0, free_space_floor_percent=0)
Opener = Callable[..., KeyValueStore]


@pytest.fixture(params=["lsm-db", "logged", "model"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Open the same store repeatedly, by default as its own node."""
    disk = ModelDisk()

    def open_store(cluster_id: str = "cluster", node_id: str = "s1") -> KeyValueStore:
        if request.param == "model":
            return ModelStore.open(disk, cluster_id, node_id, SETTINGS)
        kind = WalStore if request.param == "logged" else Store
        return kind.open(tmp_path / "store.lsm", cluster_id, node_id, SETTINGS)

    return open_store


@pytest.fixture
def store(opener: Opener) -> Iterator[KeyValueStore]:
    """Return a new store, closed at the end."""
    opened = opener()
    yield opened
    opened.close()


def test_batch_is_visible_at_once_and_numbered(store: KeyValueStore) -> None:
    """Writes are read back before any sync; commit numbers ascend by one."""
    before = store.transaction_no
    assert store.write([(b"a", b"1"), (b"b", b"")]) == before + 1 == store.transaction_no
    assert store.write([]) == before + 2
    assert (store.get(b"a"), store.get(b"b"), store.get(b"c")) == (b"1", b"", None)


def test_batch_deletes_with_none_and_applies_the_last_item(store: KeyValueStore) -> None:
    """A batch is applied in order; deleting an absent key is no error."""
    store.write([(b"a", b"1"), (b"b", b"2")])
    store.write([(b"a", None), (b"nothing", None), (b"b", b"3"), (b"b", None), (b"b", b"4")])
    assert store.scan(b"", None, 10) == [(b"b", b"4")]


@pytest.mark.parametrize(
    ("start", "stop", "limit", "keys"),
    [
        (b"", None, 10, "a b c ca d"),
        (b"", None, 2, "a b"),
        (b"b", b"d", 10, "b c ca"),
        (b"bb", b"c", 10, ""),
        (b"c", b"d", 10, "c ca"),
        (b"d", b"b", 10, ""),
        (b"e", None, 10, ""),
        (b"", None, 0, ""),
    ],
)
def test_scan_is_a_half_open_range(
    store: KeyValueStore, start: bytes, stop: bytes | None, limit: int, keys: str
) -> None:
    """Start is part of the range, stop is not; never a row of the store itself."""
    store.write([(key, b"v" + key) for key in (b"d", b"a", b"ca", b"b", b"c")])
    assert [key.decode() for key, _ in store.scan(start, stop, limit)] == keys.split()
    assert all(value == b"v" + key for key, value in store.scan(start, stop, limit))


def test_key_and_value_above_the_limits_are_refused(store: KeyValueStore) -> None:
    """1 KiB of key and 1 MiB of value are accepted; larger ones are refused before any write."""
    store.write([(b"k" * 1024, b"v" * (1 << 20))])
    assert store.get(b"k" * 1024) == b"v" * (1 << 20)
    before = store.transaction_no
    for key, value in ((b"k" * 1025, b""), (b"k", b"v" * ((1 << 20) + 1))):
        with pytest.raises(ValueTooLarge):
            store.write([(b"other", b"1"), (key, value)])
    for key in (b"", b"\xff\xff", b"\xff\xff\x00meta"):
        with pytest.raises(ValueError, match="reserved"):
            store.write([(b"other", b"1"), (key, b"")])
    assert store.get(b"other") is None
    assert store.transaction_no == before


def test_closed_store_refuses_calls_and_closes_twice(opener: Opener) -> None:
    """Every call on a closed store raises; the library would crash the interpreter."""
    store = opener()
    store.write([(b"a", b"1")])
    store.close()
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: store.write([(b"a", b"2")]),
        lambda: store.get(b"a"),
        lambda: store.scan(b"", None, 1),
        store.begin_sync,
        lambda: store.acked(1),
        lambda: store.acked_up_to,
    ]
    for call in calls:
        with pytest.raises(StoreClosed):
            call()


def test_reopened_store_has_all_rows_and_continues_numbers(opener: Opener) -> None:
    """A clean close loses no row and leaves the marker at the newest commit."""
    store = opener()
    store.write([(b"a", b"1"), (b"b", b"2")])
    last = store.write([(b"a", None)])
    store.close()
    again = opener()
    assert again.scan(b"", None, 10) == [(b"b", b"2")]
    assert again.transaction_no == again.acked_up_to == last
    assert again.write([(b"c", b"3")]) == last + 1
    again.close()


def test_second_open_is_refused(opener: Opener) -> None:
    """A second open is refused while the first is open, and accepted after."""
    store = opener()
    with pytest.raises(StoreBusy):
        opener()
    store.close()
    opener().close()


@pytest.mark.parametrize("identity", [("other", "s1"), ("cluster", "s2")])
def test_store_of_another_cluster_or_node_is_refused(opener: Opener, identity: tuple[str, str]) -> None:
    """A disk in the wrong machine is refused by name, and unchanged."""
    opener().close()
    with pytest.raises(StoreMismatch, match="has"):
        opener(*identity)
    opener().close()


def test_sync_ticket_covers_earlier_commits(store: KeyValueStore) -> None:
    """A commit after the ticket was taken needs the next sync."""
    first = store.write([(b"a", b"1")])
    ticket = store.begin_sync()
    second = store.write([(b"b", b"2")])
    assert ticket.transaction_no == first
    ticket.run()
    store.acked(first)
    assert store.acked_up_to == first
    later = store.begin_sync(marker=True)
    assert later.transaction_no == second
    later.run()


def test_marker_never_decreases_and_is_never_ahead(store: KeyValueStore) -> None:
    """A lower acknowledgement has no effect; acknowledging an unwritten commit is a bug of the caller."""
    store.write([(b"a", b"1")])
    newest = store.write([(b"a", b"2")])
    store.acked(newest)
    store.acked(1)
    assert store.acked_up_to == newest
    with pytest.raises(ValueError, match="not written"):
        store.acked(newest + 1)
