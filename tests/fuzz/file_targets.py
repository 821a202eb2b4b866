"""Fuzz targets of files: a damaged file raises an error that its reader documents, and never gives other content.

Manifest, SSTable, the journal of page sums, the "acknowledged up to" marker, the files of a router's log, and the
configuration. Files are in memory if the system supports that.
"""

import contextlib
import hashlib
import tempfile
from pathlib import Path

import msgspec

from conf.errors import UserError
from router.raft.events import HardState
from router.raft.log import RaftLog, create_log
from router.raft.log_recovery import read_folder
from router.raft.messages import LogEntry
from router.raft.storage import LogDamaged
from storage.store.acked_marker import AckedMarker
from storage.store.errors import StoreDamaged
from storage.store.page_sums import _replay
from stratamq.packages import load_config
from tests.golden.examples import example
from wire.sstable.manifest import FileEntry, Manifest, ManifestDamaged, _canonical_crc, decode_manifest, encode_manifest
from wire.sstable.run_reader import RowDamaged, check_file, iter_rows, merge_rows
from wire.sstable.schema import RowKind, make_row
from wire.sstable.writer import RunWriter

_MEMORY = Path("/dev/shm")
FOLDER = Path(tempfile.mkdtemp(prefix="stratamq-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None))

__all__ = [
    "MANIFESTS",
    "configuration",
    "log_files",
    "manifest",
    "marker_file",
    "page_sums",
    "shipped_configurations",
    "sstable",
]


def manifest(data: bytes) -> None:
    """As it is, and with the sum put right, where damage would be believed."""
    with contextlib.suppress(ManifestDamaged):
        decode_manifest(data)
    with contextlib.suppress(ManifestDamaged, msgspec.DecodeError, UnicodeDecodeError):
        plain = msgspec.json.decode(data)
        if isinstance(plain, dict):
            plain["manifest_crc"] = _canonical_crc(plain)
            decode_manifest(msgspec.json.encode(plain))


MANIFESTS = (
    encode_manifest(
        Manifest(
            manifest_no=2,
            files=[FileEntry(path="p/1.parquet", partition=1, rows=3, kinds={"1": 3})],
            op_index={"1": 9},
        )
    ),
    encode_manifest(msgspec.convert(example(Manifest, full=True), Manifest)),
    encode_manifest(Manifest(manifest_no=1)),
)


class _Run:
    """A run of some rows, made when it is first asked for: pyarrow is slow to import."""

    entry: FileEntry | None = None
    data = b""

    @classmethod
    def load(cls) -> FileEntry:
        if cls.entry is None:
            rows = [make_row(3, RowKind.QUEUED, b"k%03d" % n, n + 1, b"value", session_id=n) for n in range(40)]
            with RunWriter(FOLDER / "good.parquet", 3, generation=1, now_ms=1_000) as run:
                run.write(rows)
            cls.entry = run.entry
            cls.data = (FOLDER / "good.parquet").read_bytes()
        return cls.entry


def sstable(data: bytes) -> None:
    """Damage at the places that the input names, two bytes each and one for the new value; or the input itself.

    Returned rows have a valid checksum, and the check of a whole file detects every altered byte.
    """
    import pyarrow as pa

    good = _Run.load()
    damaged = bytearray(_Run.data)
    if data[:1] == b"P":
        damaged = bytearray(data)
    for at in range(0, min(len(data), 30) - 2, 3):
        if data[:1] != b"P":
            damaged[int.from_bytes(data[at : at + 2], "big") % len(damaged)] ^= data[at + 2]
    path = FOLDER / "damaged.parquet"
    path.write_bytes(damaged)
    with contextlib.suppress(RowDamaged, pa.ArrowException, OSError):
        for _ in merge_rows([iter_rows(path)]):
            pass
    entry = msgspec.structs.replace(good, path="damaged.parquet")
    same = hashlib.sha256(damaged).hexdigest() == good.sha256
    assert bool(check_file(FOLDER, entry)) != same


def page_sums(data: bytes) -> None:
    """Behind its magic a journal ends where it is torn."""
    sums = _replay(b"SMQsums1" + data)
    assert len(sums) <= 1 << 32


def marker_file(data: bytes) -> None:
    """Neither slot or the newest whole one."""
    path = FOLDER / "acked"
    if not path.exists():
        marker = AckedMarker.create(path, bytes(16))
        marker.write(7)
        marker.close()
    raw = bytearray(path.read_bytes())
    for at in range(0, min(len(data), 60) - 2, 3):
        raw[int.from_bytes(data[at : at + 2], "big") % len(raw)] ^= data[at + 2]
    damaged = FOLDER / "acked-damaged"
    damaged.write_bytes(raw)
    with contextlib.suppress(StoreDamaged):
        opened = AckedMarker.open(damaged)
        opened.close()
        assert opened.acked_up_to in (0, 7)


_ENTRIES = [LogEntry(n, 1, "normal", b"command %d" % n) for n in range(1, 6)]


def log_files(data: bytes) -> None:
    """Damage one of a router's files: the reader returns the written content, or refuses it."""
    folder = FOLDER / "raft"
    if not folder.exists():
        create_log(folder, 5)
        log = RaftLog(folder)
        log.load()
        log.write(HardState(1, "a"), _ENTRIES)
        log.sync()
        log.close()
    files = sorted(folder.iterdir())
    path = files[data[0] % len(files) if data else 0]
    kept = path.read_bytes()
    raw = bytearray(kept)
    for at in range(1, min(len(data), 60) - 2, 3):
        raw[int.from_bytes(data[at : at + 2], "big") % len(raw)] ^= data[at + 2]
    if data[:1] >= b"\x80":
        raw = raw[: int.from_bytes(data[-2:], "big") % (len(raw) + 1)]
    path.write_bytes(raw)
    try:
        recovered = read_folder(folder)
        assert recovered.entries == _ENTRIES
        assert recovered.stored_hard_state.hard_state == HardState(1, "a")
    except LogDamaged:
        assert raw != kept
    finally:
        path.write_bytes(kept)


def configuration(data: bytes) -> None:
    """The first byte selects the tier; a wrong file gets an error text."""
    tier = ("edge", "router", "storage")[data[0] % 3 if data else 0]
    file = FOLDER / "node.toml"
    file.write_bytes(data[1:])
    with contextlib.suppress(UserError):
        load_config(tier, file, [], {})


def shipped_configurations() -> tuple[bytes, ...]:
    """The shipped files with every default switched on, small settings first."""
    folder = Path(__file__).resolve().parents[2] / "conf"
    found = []
    for number, tier in enumerate(("edge", "router", "storage")):
        lines = (folder / f"{tier}.toml").read_text().splitlines()
        active = [line.removeprefix("# ") if " = " in line else line for line in lines]
        found.append(bytes((number,)) + "\n".join(active).encode())
        found.append(bytes((number,)) + f'[node]\ncluster = "c"\nid = "n"\nseeds = ["h:1"]\n[{tier}]\n'.encode())
    return tuple(found)
