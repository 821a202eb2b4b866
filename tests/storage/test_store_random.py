"""Random operations give equal results on the store and on a dict."""

import random
from pathlib import Path

import pytest

from storage.store import wal_store, write_ahead
from storage.store.settings import StoreSettings
from storage.store.store import Store
from storage.store.wal_store import WalStore

OPERATIONS = ("write", "compare", "work", "flush", "reopen", "sync", "kill")
SETTINGS = StoreSettings(free_space_floor_bytes=0, free_space_floor_percent=0)


def _random_key(rng: random.Random) -> bytes:
    return b"\x00\x01q" + rng.randrange(400).to_bytes(2, "big") + b"x" * rng.choice((0, 0, 7, 200))


def _random_batch(rng: random.Random) -> list[tuple[bytes, bytes | None]]:
    length = rng.choice((0, 20, 300, 5000))
    return [
        (_random_key(rng), None if rng.random() < 0.4 else rng.randbytes(length)) for _ in range(rng.randrange(1, 60))
    ]


def _compare(store: Store | WalStore, model: dict[bytes, bytes], rng: random.Random) -> None:
    start, stop = sorted((_random_key(rng), _random_key(rng)))
    expected = [(key, model[key]) for key in sorted(model) if start <= key < stop]
    limit = rng.choice((1, 10, 10_000))
    assert store.scan(start, stop, limit) == expected[:limit]
    key = _random_key(rng)
    assert store.get(key) == model.get(key)


def _run(path: Path, seed: int, operations: int, kind: type[Store] | type[WalStore] = Store) -> None:
    rng = random.Random(seed)
    model: dict[bytes, bytes] = {}
    store: Store | WalStore = kind.open(path, "c", "n", SETTINGS)
    for _ in range(operations):
        match rng.choices(OPERATIONS, (50, 30, 6, 6, 2, 40, 2))[0]:
            case "write":
                batch = _random_batch(rng)
                store.write(batch)
                for key, value in batch:
                    model.pop(key, None)
                    if value is not None:
                        model[key] = value
            case "compare":
                _compare(store, model, rng)
            case "work":
                store.work()
            case "flush":
                store.flush()
            case "reopen":
                store.close()
                store = kind.open(path, "c", "n", SETTINGS)
            case "sync":
                store.begin_sync(marker=rng.random() < 0.2).run()
                store.acked(store.transaction_no)
            case "kill":
                store.abandon()
                store = kind.open(path, "c", "n", SETTINGS)
    assert dict(store.scan(b"", None, 1 << 30)) == model
    store.close()


@pytest.mark.parametrize("seed", range(10))
def test_random_operations_match_a_dict(tmp_path: Path, seed: int) -> None:
    """Writes, deletes, lookups and scans, with flushes, merges and reopening between them."""
    _run(tmp_path / "store.lsm", seed, 400)


@pytest.fixture
def small_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make memtables and log regions so small that all paths are taken."""
    monkeypatch.setattr(wal_store, "GENERATION_BYTES", 30_000)
    monkeypatch.setattr(write_ahead, "REGION_BYTES", 120_000)


@pytest.mark.usefixtures("small_generations")
@pytest.mark.parametrize("seed", range(10))
def test_random_operations_with_a_log_match_a_dict(tmp_path: Path, seed: int) -> None:
    """The same with a write-ahead log: memtables, flushes, commits to a full log, kills and replays."""
    _run(tmp_path / "store.lsm", seed, 600, WalStore)


@pytest.mark.slow
@pytest.mark.usefixtures("small_generations")
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_random_operations_with_a_log_match_a_dict_long(tmp_path: Path, seed: int) -> None:
    """The same for longer."""
    _run(tmp_path / "store.lsm", seed, 3000, WalStore)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_random_operations_match_a_dict_long(tmp_path: Path, seed: int) -> None:
    """The same for longer."""
    _run(tmp_path / "store.lsm", seed, 3000)
