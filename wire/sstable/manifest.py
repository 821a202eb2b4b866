"""The manifest: the numbered list of the SSTables that make up an exported store.

Files are immutable; a store changes only by publishing the next manifest, which fails for the second of two writers
that read the same parent. Readers take the highest number and only the files it lists, never a directory listing. This
file decides the fields, the publication protocol and the effect of a damaged manifest: an error, never a silent step
back to an older one. Format: docs/jobs.md.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from conf.synced_folder import sync_folder
from wire.decoding import decoding_fault
from wire.sstable.schema import COLUMNS

__all__ = [
    "FOLDERS",
    "FORMAT",
    "FORMAT_VERSION",
    "FileEntry",
    "JobEntry",
    "Manifest",
    "ManifestDamaged",
    "ManifestExists",
    "ParentEntry",
    "RingEntry",
    "check_name",
    "decode_manifest",
    "encode_manifest",
    "manifest_name",
    "manifest_numbers",
    "newest_manifest",
    "next_manifest",
    "publish_manifest",
    "read_manifest",
]

FORMAT = "stratamq-sstables"
FORMAT_VERSION = 1  # raised when an older reader would misread; unknown fields alone do not raise it
HASH_NAME = "crc32/ISO-HDLC mod P"  # partition of a client ID or topic name, over its UTF-8 bytes
CRC = {"algorithm": "crc32/ISO-HDLC", "over": "key||value||seq_be64"}
SORT_ORDER = ["key asc bytewise unsigned"]
FOLDERS = ("runs", "quarantine")  # beside the manifest: all listed files are below them
_NAME = re.compile(r"manifest-(\d{8})\.json")


class ManifestDamaged(ValueError):
    """The manifest cannot be read or its CRC does not match; its listed files cannot be trusted."""


class ManifestExists(FileExistsError):
    """Another job published this number first; its state is the current one, ours is garbage."""


class FileEntry(msgspec.Struct, kw_only=True):
    """One SSTable: path, contents, checksums. Byte and row counts are exact."""

    path: str  # relative to the manifest's directory, with /
    partition: int
    level: int = 0  # 0 an export, 1 and above compacted
    generation: int = 0  # higher is newer, per partition
    full: bool = False  # a base: no older generation is needed to read it
    rows: int = 0
    bytes: int = 0
    sha256: str = ""
    key_min_hex: str = ""
    key_max_hex: str = ""
    seq_min: int = 0
    seq_max: int = 0
    epoch_min: int = 0
    epoch_max: int = 0
    tombstones: int = 0
    written_ms: int = 0  # UTC ms that expired_at_write was counted against
    expired_at_write: int = 0  # rows with 0 < expiry_ms <= written_ms
    live_bytes: int = 0  # keys and values before compression
    expired_removed: int = 0  # rows that compactions removed because they had expired, all generations so far
    # Queue entries among them, and those of sessions that had expired: session, first and last session_seq.
    expired_entries: list[tuple[int, int, int]] = []
    min_expiry_ms: int = 0  # smallest expiry_ms above 0; 0 when no row expires
    bad_rows: int = 0  # rows whose crc is known not to match
    digest: str = ""  # schema.digest_of
    kinds: dict[str, int] = {}  # rows per RowKind
    shard: int = 0  # store file of the node
    node: str = ""


class RingEntry(msgspec.Struct, kw_only=True):
    """The placement that the writer used."""

    epoch: int = 0  # map_epoch
    partitions: int = 256  # P
    hash: str = HASH_NAME
    placement: dict[str, list[str]] = {}  # partition -> nodes, primary first; optional


class JobEntry(msgspec.Struct, kw_only=True):
    """The job that made this manifest."""

    kind: str = "export"  # export | compact
    now_ms: int = 0  # the time that decided on expiry
    run_id: str = ""
    inputs: list[str] = []  # sha256 of each input file
    removed: dict[str, int] = {}  # rows removed, by reason
    held: dict[str, str] = {}  # partition -> why its files were carried unmerged
    before: dict[str, list[int]] = {}  # partition merged -> generations, rows, bytes before


class ParentEntry(msgspec.Struct, kw_only=True):
    """The manifest that this one replaces."""

    manifest_no: int
    sha256: str


class Manifest(msgspec.Struct, kw_only=True):
    """One state of an exported store."""

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    manifest_no: int
    parent: ParentEntry | None = None
    created_ms: int = 0
    cluster_id: str = ""
    writer: dict[str, str] = {}  # name, version
    ring: RingEntry = msgspec.field(default_factory=RingEntry)
    job: JobEntry = msgspec.field(default_factory=JobEntry)
    schema: list[dict[str, Any]] = []  # name, type, nullable; filled by encode_manifest
    crc: dict[str, str] = msgspec.field(default_factory=lambda: dict(CRC))
    sort_order: list[str] = msgspec.field(default_factory=lambda: list(SORT_ORDER))
    files: list[FileEntry] = []
    totals: dict[str, int] = {}  # rows, bytes, files; filled by encode_manifest
    tombstone_horizon_seq: dict[str, int] = {}  # partition -> no tombstone with seq <= this is left
    op_index: dict[str, int] = {}  # partition -> operations up to this one are in the files of its newest copy
    replica_op_index: dict[str, dict[str, int]] = {}  # node -> partition -> the same for the files of that node
    quarantine: list[str] = []  # files with rows that were held back, relative paths
    manifest_crc: int = 0  # CRC-32 of the canonical JSON without this field

    def files_of(self, partition: int) -> list[FileEntry]:
        """Return the partition's files, oldest generation first."""
        return sorted((f for f in self.files if f.partition == partition), key=lambda f: (f.generation, f.path))

    def op_index_at(self, node: str, partition: int) -> int:
        """Return the op_index of a partition's files of one node; -1 if the manifest has none.

        A manifest without op_index per node has one copy of each partition.
        """
        if node in self.replica_op_index:
            return self.replica_op_index[node].get(str(partition), -1)
        return self.op_index.get(str(partition), -1)

    @property
    def partitions(self) -> list[int]:
        """Partitions that have a file, ascending."""
        return sorted({f.partition for f in self.files})


def manifest_name(manifest_no: int) -> str:
    """Return the file name of a manifest number."""
    return f"manifest-{manifest_no:08d}.json"


def manifest_numbers(names: Iterable[str]) -> list[int]:
    """Return the manifest numbers among file names, ascending."""
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def encode_manifest(manifest: Manifest) -> bytes:
    """Fill schema, totals and manifest_crc and return canonical JSON (sorted keys, no blanks, final newline)."""
    manifest.schema = [{"name": n, "type": t, "nullable": nullable} for n, t, nullable in COLUMNS]
    manifest.files.sort(key=lambda f: (f.partition, f.node, f.generation, f.path))
    manifest.totals = {
        "bytes": sum(f.bytes for f in manifest.files),
        "files": len(manifest.files),
        "rows": sum(f.rows for f in manifest.files),
    }
    plain = msgspec.to_builtins(manifest)
    plain["manifest_crc"] = manifest.manifest_crc = _canonical_crc(plain)
    return msgspec.json.encode(plain, order="sorted") + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest in data.

    Raises:
        ManifestDamaged: If it is not JSON of this format and version, its CRC does not match, or it lists a file
            outside the folders of runs.
    """
    try:
        plain = msgspec.json.decode(data)
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise ManifestDamaged("not a manifest of exported SSTables")
        if plain.get("format_version") != FORMAT_VERSION:
            raise ManifestDamaged(f"format_version {plain.get('format_version')}, expected {FORMAT_VERSION}")
        if plain.get("manifest_crc") != _canonical_crc(plain):
            raise ManifestDamaged("manifest_crc does not match")
        manifest = msgspec.convert(plain, Manifest)
        for name in (*(entry.path for entry in manifest.files), *manifest.quarantine):
            check_name(name)
        return manifest
    except ManifestDamaged:
        raise
    except Exception as error:  # RecursionError and UnicodeDecodeError among others: the bytes are the cause
        raise ManifestDamaged(decoding_fault(error)) from error


def check_name(name: str) -> None:
    """Check that a listed file is below ``runs/`` or ``quarantine/`` of its manifest's directory.

    A CRC proves no author: jobs read, copy and delete the listed files.

    Raises:
        ManifestDamaged: If the name is absolute, leads elsewhere, or is no plain relative path.
    """
    parts = name.split("/")
    if len(parts) < 2 or parts[0] not in FOLDERS or not set(parts).isdisjoint({"", ".", ".."}) or "\0" in name:
        raise ManifestDamaged(f"it lists {name[:200]!r}, which is not below {' or '.join(FOLDERS)}")


def _canonical_crc(plain: dict[str, Any]) -> int:
    rest = {name: value for name, value in plain.items() if name != "manifest_crc"}
    return zlib.crc32(msgspec.json.encode(rest, order="sorted"))


def next_manifest(parent: Manifest | None, parent_bytes: bytes = b"") -> Manifest:
    """Return a draft that follows parent: number, lineage, ring, horizons and files carried over."""
    import hashlib

    if parent is None:
        return Manifest(manifest_no=1)
    data = parent_bytes or encode_manifest(parent)
    return Manifest(
        manifest_no=parent.manifest_no + 1,
        parent=ParentEntry(manifest_no=parent.manifest_no, sha256=hashlib.sha256(data).hexdigest()),
        cluster_id=parent.cluster_id,
        ring=parent.ring,
        files=list(parent.files),
        tombstone_horizon_seq=dict(parent.tombstone_horizon_seq),
        op_index=dict(parent.op_index),
        replica_op_index={node: dict(indexes) for node, indexes in parent.replica_op_index.items()},
        quarantine=list(parent.quarantine),
    )


def publish_manifest(directory: Path, manifest: Manifest) -> Path:
    """Write the manifest under its number: atomically, and never over another one.

    The files it lists must be complete and synced before the call.

    Raises:
        ManifestExists: If the number was taken; the directory is unchanged.
    """
    path = directory / manifest_name(manifest.manifest_no)
    temporary = directory / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(encode_manifest(manifest))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # unlike rename, fails when the name exists
        except FileExistsError as error:
            raise ManifestExists(f"{path.name} was published by another job") from error
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(directory)
    return path


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in a file, or the newest one of a directory.

    Raises:
        FileNotFoundError: If there is none.
        ManifestDamaged: If it cannot be trusted.
    """
    if path.is_dir():
        newest = newest_manifest(path)
        if newest is None:
            raise FileNotFoundError(f"no manifest in {path}")
        return newest
    return decode_manifest(path.read_bytes())


def newest_manifest(directory: Path) -> Manifest | None:
    """Return the manifest with the highest number, or None when the directory has none.

    Raises:
        ManifestDamaged: If that one is damaged. Older ones are no substitute: they lack later writes.
    """
    numbers = manifest_numbers(p.name for p in directory.iterdir()) if directory.is_dir() else []
    return decode_manifest((directory / manifest_name(numbers[-1])).read_bytes()) if numbers else None
