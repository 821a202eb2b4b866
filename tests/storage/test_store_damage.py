"""Damage of the data file: no wrong data is returned (F20). Without page sums 2 % of changes were undetected."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.store.errors import StoreDamaged, StoreIncomplete, StoreUnverified
from storage.store.quarantine import store_files
from storage.store.scrub import Scrub, verify
from storage.store.settings import StoreSettings
from storage.store.store import Store
from tests.storage.damaged_child import DAMAGED
from tests.storage.faulty_library import FaultyLibrary

SETTINGS = StoreSettings(free_space_floor_bytes=0, free_space_floor_percent=0)
PAGE_BYTES = 4096
HEADER_BYTES = 2 * PAGE_BYTES


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[bytes, bytes]]:
    """Write a closed store of several segments with overwritten and deleted rows, and its rows."""
    path = tmp_path_factory.mktemp("pristine") / "store.lsm"
    rng, rows = random.Random(1), dict[bytes, bytes]()
    store = Store.open(path, "c", "n", SETTINGS)
    for number in range(150):
        batch: list[tuple[bytes, bytes | None]] = []
        for _ in range(50):
            key = b"\x00\x01q%06d" % rng.randrange(4000)
            value = None if rng.random() < 0.3 else rng.randbytes(rng.randrange(20, 300))
            batch.append((key, value))
            rows.pop(key, None)
            if value is not None:
                rows[key] = value
        store.write(batch)
        if number % 40 == 39:
            store.flush()
    store.close()
    return path, rows


def _flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(HEADER_BYTES, len(data))] ^= 1 << rng.randrange(8)


def _swap_pages(data: bytearray, rng: random.Random) -> None:
    one, other = (rng.randrange(2, len(data) // PAGE_BYTES) * PAGE_BYTES for _ in range(2))
    data[one : one + PAGE_BYTES], data[other : other + PAGE_BYTES] = (
        data[other : other + PAGE_BYTES],
        data[one : one + PAGE_BYTES],
    )


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _flip_header(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(HEADER_BYTES)] ^= 1 << rng.randrange(8)


def _trial(pristine: Path, rows: dict[bytes, bytes], folder: Path, change: Callable[..., None], seed: int) -> bool:
    """Damage a copy and read all rows; return whether the damage was detected, fail if a wrong row was returned."""
    path = folder / f"store-{seed}.lsm"  # a damaged one is opened once per process
    for source, copy in zip(store_files(pristine), store_files(path), strict=True):
        copy.unlink(missing_ok=True)
        if source.exists():
            shutil.copy(source, copy)
    data = bytearray(path.read_bytes())
    change(data, random.Random(seed))
    path.write_bytes(data)
    try:
        store = Store.open(path, "c", "n", SETTINGS)
    except (StoreDamaged, StoreIncomplete):
        return True
    try:
        seen = _read_all(store, rows)
        clean = Scrub(store).run().clean
        assert not (seen and clean), "a scrub detects all that reads detect, and damage of the store's own rows"
        return seen or not clean
    finally:
        store.abandon()


def _read_all(store: Store, rows: dict[bytes, bytes]) -> bool:
    seen = False
    try:
        assert dict(store.scan(b"", None, 1 << 30)) == rows
    except StoreDamaged:
        seen = True
    for key in list(rows)[:: 1 if seen else 20]:
        try:
            assert store.get(key) == rows[key]
        except StoreDamaged:
            seen = True
    return seen


@pytest.mark.parametrize(
    ("change", "seen_min"),
    # A flip in an unreferenced page is neither detected nor returned.
    [(_flip, 5), (_swap_pages, 10), (_cut, 20), (_flip_header, 0)],
    ids=["flip", "swap", "cut", "header"],
)
def test_damage_is_never_served(
    pristine: tuple[Path, dict[bytes, bytes]], tmp_path: Path, change: Callable[..., None], seen_min: int
) -> None:
    """20 trials each: every read returns the true value or StoreDamaged, and a scrub agrees with the reads."""
    path, rows = pristine
    assert sum(_trial(path, rows, tmp_path, change, seed) for seed in range(20)) >= seen_min


@pytest.mark.slow
@pytest.mark.parametrize("change", [_flip, _swap_pages, _cut, _flip_header], ids=["flip", "swap", "cut", "header"])
def test_damage_is_never_served_long(
    pristine: tuple[Path, dict[bytes, bytes]], tmp_path: Path, change: Callable[..., None]
) -> None:
    """200 trials each."""
    path, rows = pristine
    for seed in range(1000, 1200):
        _trial(path, rows, tmp_path, change, seed)


def test_damaged_page_sums_are_refused_or_harmless(pristine: tuple[Path, dict[bytes, bytes]], tmp_path: Path) -> None:
    """A flipped bit in the journal of sums makes pages unreadable or unchecked, never wrong.

    Without its head it is invalid.
    """
    path, rows = pristine
    for seed in range(10):
        damaged = tmp_path / f"store-{seed}.lsm"
        sums = damaged.with_name(damaged.name + "-sums")
        for source, copy in zip(store_files(path), store_files(damaged), strict=True):
            if source.exists():
                shutil.copy(source, copy)
        data = bytearray(sums.read_bytes())
        data[random.Random(seed).randrange(len(data))] ^= 1
        sums.write_bytes(data)
        try:
            store = Store.open(damaged, "c", "n", SETTINGS)
        except StoreDamaged:
            continue
        _read_all(store, rows)
        store.abandon()
    sums.write_bytes(b"x" + sums.read_bytes()[1:])
    with pytest.raises(StoreDamaged, match="not a journal"):
        Store.open(damaged, "c", "n", SETTINGS)
    sums.unlink()
    with pytest.raises(StoreDamaged, match="missing"):
        Store.open(damaged, "c", "n", SETTINGS)


def test_damaged_page_is_remembered_without_a_crash(pristine: tuple[Path, dict[bytes, bytes]], tmp_path: Path) -> None:
    """The library forgets some read errors and crashes later: it is never called after the first one."""
    program = Path(__file__).with_name("damaged_child.py")
    for seed in range(12):
        path = tmp_path / f"store-{seed}.lsm"
        for source, copy in zip(store_files(pristine[0]), store_files(path), strict=True):
            if source.exists():
                shutil.copy(source, copy)
        data = bytearray(path.read_bytes())
        for _ in range(8):
            _flip(data, random.Random(seed))
        path.write_bytes(data)
        ended = subprocess.run([sys.executable, program, str(path), str(seed)], check=False, timeout=300)
        assert ended.returncode in (0, DAMAGED), f"seed {seed}"
        if ended.returncode == DAMAGED:
            with pytest.raises(StoreDamaged, match="before"):
                Store.open(path, "c", "n", SETTINGS)


def test_merge_of_a_damaged_page_abandons_the_store(pristine: tuple[Path, dict[bytes, bytes]], tmp_path: Path) -> None:
    """Further writes would copy the damage or always fail: the store must be rebuilt."""
    for source, copy in zip(store_files(pristine[0]), store_files(tmp_path / "store.lsm"), strict=True):
        if source.exists():
            shutil.copy(source, copy)
    path = tmp_path / "store.lsm"
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // PAGE_BYTES):
        data[page * PAGE_BYTES + 50] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreUnverified):
        store = Store.open(path, "c", "n", SETTINGS)
        for _ in range(100):
            store.write([(b"\x00\x02%06d" % number, b"v" * 1000) for number in range(300)])
            store.flush()
            store.work()


def test_verify_reports_the_findings_of_a_scrub(
    pristine: tuple[Path, dict[bytes, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean store: rows and bytes counted.

    A record with a wrong sum: its key. A store that cannot open: the reason.
    """
    path = tmp_path / "store.lsm"
    for source, copy in zip(store_files(pristine[0]), store_files(path), strict=True):
        if source.exists():
            shutil.copy(source, copy)
    rows = pristine[1]
    report = verify(path, SETTINGS)
    assert report.clean
    assert (report.rows, report.ranges[1].value_bytes) == (len(rows), sum(map(len, rows.values())))

    library = FaultyLibrary(monkeypatch)
    store = Store.open(path, "c", "n", SETTINGS)
    key = sorted(rows)[10]
    library.handle.insert(key, b"\x01" + bytes(4) + b"not what was written")
    assert [(found.kind, found.key) for found in Scrub(store).run().findings] == [("record", key)]
    with pytest.raises(StoreDamaged, match=key.hex()):
        store.get(key)
    assert dict(store.scan(b"", key, 1 << 30)) == {found: value for found, value in rows.items() if found < key}
    store.write([(key, rows[key])])  # repaired from a replica
    assert Scrub(store).run().clean
    store.close()

    path.write_bytes(bytes(len(path.read_bytes())))
    report = verify(path, SETTINGS)
    assert [finding.kind for finding in report.findings] == ["store"]
    assert "damaged" in str(report.findings[0])


def test_sliced_scrub_ends_during_writes(tmp_path: Path) -> None:
    """An open store: slices see a consistent store between writes, and the digest does not depend on history."""
    store = Store.open(tmp_path / "one.lsm", "c", "n", SETTINGS)
    store.write([(b"\x00\x01%04d" % number, b"v" * (number % 50)) for number in range(1000)])
    scrub, turns = Scrub(store), 0
    while scrub.step(64):
        turns += 1
        store.write([(b"\x00\x01%04d" % (turns * 7), b"again"), (b"\x00\x01%04d" % (turns * 11), None)])
    assert scrub.report.clean
    assert turns >= 14

    other = Store.open(tmp_path / "other.lsm", "c", "n2", SETTINGS)
    other.write(store.scan(b"", None, 1 << 30)[::-1])
    digests = [Scrub(each).run().ranges[1] for each in (store, other)]
    assert digests[0] == digests[1]
    other.write([(b"\x00\x010001", b"different")])
    assert Scrub(other).run().ranges[1] != digests[0]
    store.close()
    other.close()
