"""The spool of gateways: order, atomic commits, the bound, and refused files."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from conf.errors import UserError
from gateways.spool import SpoolFailed, SpoolFile, SpoolFull
from gateways.spool_rows import Delete, Put, Write
from gateways.spool_thread import Spool
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
BOUND = 64 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def spool(path: Path) -> Iterator[Spool]:
    opened = Spool(SpoolFile(path, "bridge north", BOUND))
    yield opened
    opened.close()


def rows(path: Path, kind: str, owner: str = "bridge north") -> list[tuple[bytes, bytes]]:
    """Open a closed spool, and return its rows of a kind."""
    opened = SpoolFile(path, owner, BOUND)
    try:
        return list(opened.load(kind))
    finally:
        opened.close()


async def test_rows_come_back_in_key_order_by_kind(spool: Spool) -> None:
    """Kinds are separate; a later write of a commit replaces an earlier one."""
    await spool.commit([Put("a", bytes([n]), b"v%d" % n) for n in (3, 1, 2)] + [Put("b", b"\x01", b"other")])
    await spool.commit([Delete("a", b"\x02"), Put("a", b"\x03", b"new"), Put("a", b"\x04", b"x"), Delete("a", b"\x04")])
    assert list(spool.load("a")) == [(b"\x01", b"v1"), (b"\x03", b"new")]
    assert list(spool.load("b")) == [(b"\x01", b"other")]
    assert list(spool.load("c")) == []


async def test_more_rows_than_one_read(spool: Spool) -> None:
    """Loading reads in batches; an empty key and an empty value are valid."""
    wanted: list[Write] = [Put("a", n.to_bytes(2), b"") for n in range(2_500)]
    await spool.commit([*wanted, Put("a", b"", b"first")])
    assert [key for key, _ in spool.load("a")] == [b"", *(n.to_bytes(2) for n in range(2_500))]


async def test_callers_share_transactions(spool: Spool) -> None:
    """A hundred callers share few syncs, and each finds its writes stored on return."""
    seen = []

    async def write(number: int) -> None:
        await spool.commit([Put("a", number.to_bytes(2), b"v")])
        seen.append((number.to_bytes(2), b"v") in set(spool.load("a")))

    before = spool.transactions
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(write, number)
    assert seen == [True] * 100
    assert spool.transactions - before <= 10
    assert spool.rows == 100


async def test_spool_commit_above_bound_is_refused(path: Path) -> None:
    """A commit above the bound stores no row and affects no other commit; draining commits still work."""
    spool = Spool(SpoolFile(path, "test", 2 << 20))
    try:
        value = bytes(200_000)
        stored = 0
        with pytest.raises(SpoolFull):
            for number in range(100):
                await spool.commit([Put("a", bytes([number]), value), Put("b", bytes([number]), b"")])
                stored += 1
        assert 5 < stored < 11
        assert spool.size_bytes <= 2 << 20
        assert len(list(spool.load("a"))) == len(list(spool.load("b"))) == stored
        assert spool.refused == 1
        await spool.commit([Put("c", b"small", b"")])
        await spool.commit([Put("c", b"needed", value)], drains=True)
        await spool.commit([Delete("a", bytes([number])) for number in range(stored)], drains=True)
        await spool.commit([Put("a", b"again", value)])
    finally:
        spool.close()


async def test_a_commit_larger_than_one_group(spool: Spool) -> None:
    """One caller's writes are one transaction, whatever their number."""
    before = spool.transactions
    await spool.commit([Put("a", n.to_bytes(4), bytes(100)) for n in range(5_000)])
    assert spool.transactions == before + 1
    await spool.commit([])


def test_spool_of_another_owner_is_refused(path: Path) -> None:
    """Another bridge's spool is refused with its name, and not changed."""
    SpoolFile(path, "bridge north", BOUND).close()
    with pytest.raises(UserError, match="belongs to bridge north, not to bridge south: give each") as refused:
        SpoolFile(path, "bridge south", BOUND)
    assert "\n" not in refused.value.message
    assert rows(path, "a") == []


def test_one_process_at_a_time(path: Path, spool: Spool) -> None:
    """A second one is refused."""
    code = f"from gateways.spool import SpoolFile\nfrom pathlib import Path\nSpoolFile(Path({str(path)!r}), 'x', 1)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "is in use by another process" in ended.stderr
    del spool


def change(path: Path, statement: str) -> None:
    database = sqlite3.connect(path)
    database.execute(statement)
    database.commit()
    database.close()


def test_newer_version(path: Path) -> None:
    """A file of a newer version is not changed."""
    SpoolFile(path, "x", BOUND).close()
    change(path, "PRAGMA user_version = 2")
    before = path.read_bytes()
    with pytest.raises(UserError, match="has version 2, this program supports up to 1: start the newer program"):
        SpoolFile(path, "x", BOUND)
    assert path.read_bytes() == before


def test_another_programs_files(path: Path, tmp_path: Path) -> None:
    """A text file, and another program's database."""
    path.write_text("no database " * 1000)
    path.chmod(0o600)
    with pytest.raises(UserError, match="is no spool, or damaged in its first page"):
        SpoolFile(path, "x", BOUND)
    other = tmp_path / "other"
    change(other, "CREATE TABLE songs(name)")
    other.chmod(0o600)
    with pytest.raises(UserError, match="is another program's database: name another file"):
        SpoolFile(other, "x", BOUND)
    change(other, "SELECT name FROM songs")


def test_spool_without_tables_counts_as_new(path: Path) -> None:
    """A crash before the first COMMIT leaves a file without tables, which counts as new."""
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    database.close()
    path.chmod(0o600)
    assert rows(path, "a") == []


def test_spool_unsafe_file_mode_or_link_is_refused(path: Path, tmp_path: Path) -> None:
    """It contains messages: unsafe permissions are refused."""
    SpoolFile(path, "x", BOUND).close()
    path.chmod(0o644)
    with pytest.raises(UserError, match="is open to group or others"):
        SpoolFile(path, "x", BOUND)
    path.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(UserError, match="is a symbolic link"):
        SpoolFile(link, "x", BOUND)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user's file")
def test_another_users_file(path: Path) -> None:
    """It is refused, not used."""
    SpoolFile(path, "x", BOUND).close()
    os.chown(path, 12345, -1)
    with pytest.raises(UserError, match="belongs to user 12345"):
        SpoolFile(path, "x", BOUND)


def test_no_folder(tmp_path: Path) -> None:
    """The caller must create the folder."""
    with pytest.raises(UserError, match="its folder must exist"):
        SpoolFile(tmp_path / "missing" / "spool", "x", BOUND)


def fill(path: Path) -> None:
    """Make a spool of several pages with an unclean shutdown."""
    opened = SpoolFile(path, "x", BOUND)
    opened.commit(Put("a", n.to_bytes(4), b"payload-%d " % n * 20) for n in range(400))
    opened.close()
    change(path, "UPDATE facts SET value = 'open' WHERE name = 'state'")
    change(path, "PRAGMA wal_checkpoint(TRUNCATE)")


@pytest.mark.parametrize("page", range(8))
def test_damaged_pages(path: Path, page: int) -> None:
    """A corrupt page is detected at start, before any read."""
    fill(path)
    with path.open("r+b") as file:
        file.seek(page * 4096)
        file.write(os.urandom(4096))
    with pytest.raises(UserError, match="damaged") as refused:
        SpoolFile(path, "x", BOUND)
    assert "\n" not in refused.value.message


def test_damaged_payload(path: Path) -> None:
    """A flipped bit in a value is detected by the row's checksum, not by SQLite."""
    fill(path)
    data = path.read_bytes()
    at = data.index(b"payload-123 payload-123")
    path.write_bytes(data[:at] + b"q" + data[at + 1 :])
    opened = SpoolFile(path, "x", BOUND)
    with pytest.raises(UserError, match=r"damaged \(a row of kind a does not match its checksum\)"):
        list(opened.load("a"))
    opened.close()


def verify_all(spool: SpoolFile) -> int:
    """Verify the whole file; return the number of slices."""
    return 1 + sum(iter(lambda: not spool.verify_slice(), False))


def replace_in(path: Path, old: bytes, new: bytes) -> None:
    """Change bytes of an open spool, in the file and in its log."""
    count = 0
    for each in (path, path.with_name(f"{path.name}-wal")):
        data = each.read_bytes()
        count += data.count(old)
        with each.open("r+b") as file:
            file.write(data.replace(old, new))
    assert count


def test_spool_verify_slice_covers_open_file(path: Path) -> None:
    """Slices are bounded by rows and bytes; concurrent writes are no damage."""
    opened = SpoolFile(path, "x", BOUND)
    opened.commit(Put("a", n.to_bytes(4), b"") for n in range(2_500))
    assert [verify_all(opened) for _ in range(2)] == [2, 2]
    assert not opened.verify_slice()
    opened.commit([Delete("a", n.to_bytes(4)) for n in range(2_000)])
    opened.commit(Put("b", n.to_bytes(4), bytes(3 << 20)) for n in range(5))
    assert verify_all(opened) == 3
    opened.close()


@pytest.mark.parametrize("page", [0, *range(2, 8)])
def test_spool_verify_slice_detects_damaged_page(path: Path, page: int) -> None:
    """Detected without a restart, with one line, whichever page of rows is damaged."""
    fill(path)
    opened = SpoolFile(path, "x", BOUND)
    assert verify_all(opened) == 1
    opened.commit([Put("a", b"other", b"")])
    with path.open("r+b") as file:
        file.seek(page * 4096)
        file.write(os.urandom(4096))
    with pytest.raises(SpoolFailed, match="damaged") as failed:
        verify_all(opened)
    assert "\n" not in failed.value.message
    opened.close()


def test_spool_verify_slice_detects_flipped_bit(path: Path) -> None:
    """The row's checksum finds it."""
    fill(path)
    opened = SpoolFile(path, "x", BOUND)
    replace_in(path, b"payload-123 payload-123", b"payload-123 qayload-123")
    with pytest.raises(SpoolFailed, match=r"damaged \(a row of kind a does not match its checksum\)"):
        verify_all(opened)
    opened.close()


def test_spool_commit_on_damaged_file_fails(path: Path) -> None:
    """Its callers get an error."""
    SpoolFile(path, "x", BOUND).close()
    opened = SpoolFile(path, "x", BOUND)
    opened.commit(Put("a", n.to_bytes(4), bytes(2_000)) for n in range(4_000))  # more than SQLite's page cache
    opened.close()
    opened = SpoolFile(path, "x", BOUND)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(bytes(size - 8192))
    with pytest.raises(SpoolFailed, match="cannot be written: database disk image is malformed"):
        opened.commit([Delete("a", n.to_bytes(4)) for n in range(4_000)])
    opened.close()


@pytest.mark.parametrize("name", ["spool", "spool-wal"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_spool_removed_file_fails(path: Path, name: str, is_replaced: bool) -> None:
    """Later writes would be lost: the process ends."""
    opened = SpoolFile(path, "x", BOUND)
    verify_all(opened)
    file = path.with_name(name)
    data = file.read_bytes()
    file.unlink()
    if is_replaced:
        file.write_bytes(data)
    with pytest.raises(SpoolFailed, match="was removed"):
        opened.verify_slice()
    opened.close()


async def test_spool_watch_damaged_file_raises(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later commits fail too."""
    monkeypatch.setattr("gateways.spool_thread.VERIFY_INTERVAL_S", 0.001)
    spool = Spool(SpoolFile(path, "x", BOUND))
    await spool.commit([Put("a", b"1", b"payload")])

    async def watch() -> None:
        with pytest.raises(SpoolFailed, match="damaged"):
            await spool.watch()

    with trio.move_on_after(PATIENCE_S) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            while spool.scrubs < 3:
                await trio.sleep(0.001)
            replace_in(path, b"payload", b"qayload")
    assert not scope.cancelled_caught
    with pytest.raises(SpoolFailed, match="damaged"):
        await spool.commit([Put("a", b"2", b"")])
    spool.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs of 1 MiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root: a small disk is mounted")
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "spool", folder], check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=False)


async def test_full_disk(small_disk: Path) -> None:
    """Failed commits store no row, earlier rows stay; after space is freed the spool works again."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(500_000))
    spool = Spool(SpoolFile(small_disk / "spool", "x", BOUND))
    number = 0
    with pytest.raises(SpoolFull, match="no room on the disk"):
        for number in range(1_000):
            await spool.commit([Put("a", number.to_bytes(4), bytes(5_000)), Put("b", number.to_bytes(4), b"")])
    with pytest.raises(SpoolFull):
        await spool.commit([Put("a", b"again", bytes(50_000))])
    assert len(list(spool.load("a"))) == len(list(spool.load("b"))) == number > 10
    ballast.unlink()
    await spool.commit([Put("a", number.to_bytes(4), bytes(5_000))])
    spool.close()
    assert len(rows(small_disk / "spool", "a", "x")) == number + 1


def test_spool_full_disk_at_start_fails(small_disk: Path) -> None:
    """One line, and no partial spool; after space is freed it is created."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes((1 << 20) - 4096 * 2))
    with pytest.raises(UserError, match="no room on its disk"):
        SpoolFile(small_disk / "spool", "x", BOUND)
    ballast.unlink()
    assert rows(small_disk / "spool", "a", "x") == []


def test_read_only(small_disk: Path) -> None:
    """A read-only mount, with a spool on it and without one."""
    path = small_disk / "spool"
    SpoolFile(path, "x", BOUND).close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(UserError, match="is read-only: give it a folder that this user may write"):
        SpoolFile(path, "x", BOUND)
    with pytest.raises(UserError, match="is read-only"):
        SpoolFile(small_disk / "new", "x", BOUND)
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    assert rows(path, "a", "x") == []
