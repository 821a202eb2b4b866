"""Reading SSTables without Spark: rows, the merge of a partition's runs, and the check of a whole manifest.

The importer of the storage tier reads a store through ``iter_newest``; it is also the reference that the Spark
compaction is compared with, row for row. This file decides the winning version of a key. A damaged row is an error,
never a gap that exposes an older version.
"""

from __future__ import annotations

import hashlib
import heapq
import zlib
from collections.abc import Iterator
from functools import reduce
from itertools import groupby, pairwise
from operator import itemgetter, lt, xor
from pathlib import Path
from typing import Any

from wire.sstable.manifest import FileEntry, Manifest, ManifestDamaged, read_manifest
from wire.sstable.schema import COLUMN_INDEX, COLUMNS, Row, arrow_schema, digest_of, row_crc

__all__ = ["RowDamaged", "check_file", "check_identity", "iter_newest", "iter_rows", "merge_rows", "verify_manifest"]

_REQUIRED = frozenset(name for name, _, nullable in COLUMNS if not nullable)
_READ_ROWS = 20_000  # rows of one run held in memory while merging
_KEY, _SEQ, _VALUE, _CRC, _EPOCH = (COLUMN_INDEX[c] for c in ("key", "seq", "value", "crc", "epoch"))
_TOMBSTONE = COLUMN_INDEX["tombstone"]
_HASH_BYTES = 1 << 20


class RowDamaged(ValueError):
    """A row's CRC does not match, or a mandatory value is missing.

    Its content is unknown, so no row of its partition is provably the newest.
    """


def iter_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a run as tuples in the order of COLUMNS, their sums unchecked.

    Raises:
        RowDamaged: A column or a mandatory value is missing.
    """
    for columns in _batches(path):
        yield from zip(*columns, strict=True)


def _batches(path: Path, names: list[str] | None = None) -> Iterator[list[list[Any]]]:
    import pyarrow.parquet as pq

    names = names or list(COLUMN_INDEX)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(batch_size=_READ_ROWS, columns=names):
                yield [_column(path, batch, name) for name in names]
    except UnicodeDecodeError as error:  # the library's own, of damaged metadata or text
        raise RowDamaged(f"{path}: {error}") from None


def _column(path: Path, batch: Any, name: str) -> list[Any]:
    """Return one column's values. A file with damaged metadata may be readable and lack mandatory columns."""
    if name not in batch.schema.names:
        raise RowDamaged(f"{path}: no column {name}")
    column = batch.column(name)
    if name in _REQUIRED and column.null_count:
        raise RowDamaged(f"{path}: rows without {name}")
    values: list[Any] = column.to_pylist()
    return values


def _order(row: Row) -> tuple[bytes, int, int, int]:
    """Key ascending; of one key the newest version first: highest seq, then epoch, then crc to be definite."""
    return row[_KEY], -row[_SEQ], -row[_EPOCH], -row[_CRC]


def merge_rows(runs: list[Iterator[Row]]) -> Iterator[Row]:
    """Yield the newest version of each key of several runs, in key order, tombstones included.

    Raises:
        RowDamaged: At the first row, winning or not, whose CRC does not match.
    """
    for _, versions in groupby(heapq.merge(*runs, key=_order), key=itemgetter(_KEY)):
        checked = [_checked(row) for row in versions]
        yield checked[0]


def _checked(row: Row) -> Row:
    if row_crc(row[_KEY], row[_VALUE], row[_SEQ]) != row[_CRC]:
        raise RowDamaged(f"crc of key {row[_KEY].hex()} seq {row[_SEQ]}")
    return row


def iter_newest(
    directory: Path, manifest: Manifest, partition: int, *, node: str | None = None, verify: bool = True
) -> Iterator[Row]:
    """Yield the live rows of a partition for an import, newest versions only, in key order.

    Expired rows and entries below a session's acked_up_to are included where no compaction removed them.

    Args:
        node: Read only this node's replica; None reads the files of all, which is right when there is one.
        verify: Compare each file's size and sha256 with the manifest first.
    Raises:
        RowDamaged: When a row is bad. The rows yielded before are not a complete partition: load them aside.
        ManifestDamaged: When a file is missing or is not the one the manifest lists.
    """
    entries = [f for f in manifest.files_of(partition) if node is None or f.node == node]
    if verify:
        for entry in entries:
            problem = check_identity(directory, entry)
            if problem:
                raise ManifestDamaged(problem)
    for row in merge_rows([iter_rows(directory / entry.path) for entry in entries]):
        if not row[_TOMBSTONE]:
            yield row


def verify_manifest(path: Path) -> list[str]:
    """Check every file of a manifest: identity, counts, order, bounds, CRC of each row. Return the problems.

    Args:
        path: A manifest, or a directory with its newest one.
    """
    try:
        manifest = read_manifest(path)
    except (OSError, ManifestDamaged) as error:
        return [f"{path}: {error}"]
    directory = path if path.is_dir() else path.parent
    return [problem for entry in manifest.files for problem in check_file(directory, entry)]


def check_identity(directory: Path, entry: FileEntry) -> str:
    """Return how a file differs from its listing, "" if size and sha256 match."""
    path = directory / entry.path
    if not path.is_file():
        return f"{entry.path}: missing"
    if path.stat().st_size != entry.bytes:
        return f"{entry.path}: {path.stat().st_size} bytes, manifest says {entry.bytes}"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BYTES):
            digest.update(block)
    if digest.hexdigest() != entry.sha256:
        return f"{entry.path}: sha256 {digest.hexdigest()}, manifest says {entry.sha256}"
    return ""


def check_file(directory: Path, entry: FileEntry) -> list[str]:
    """Return the faults of one file, as sentences that begin with its path."""
    import pyarrow as pa

    identity = check_identity(directory, entry)
    if identity.endswith("missing"):
        return [identity]
    problems = [identity] if identity else []
    try:
        found = _measure(directory / entry.path, problems, entry)
    except (pa.ArrowException, OSError, RuntimeError, ValueError) as error:
        return [*problems, f"{entry.path}: unreadable: {error}"]
    for name, value in found.items():
        if value != getattr(entry, name):
            problems.append(f"{entry.path}: {name} is {value}, manifest says {getattr(entry, name)}")
    return problems


def _measure(path: Path, problems: list[str], entry: FileEntry) -> dict[str, Any]:
    """Read a run once and return the manifest fields as found; add order, partition and CRC problems."""
    import pyarrow.parquet as pq

    if not pq.read_schema(path).remove_metadata().equals(arrow_schema()) and entry.level == 0:
        problems.append(f"{entry.path}: not the schema of an SSTable")
    rows = tombstones = crc_sum = seq_xor = bad = disorder = strangers = 0
    key_min = key_max = last = None
    seq_min = seq_max = 0
    names = ["partition", "key", "seq", "value", "tombstone", "crc"]
    for partitions, keys, seqs, values, dead, crcs in _batches(path, names):
        chain = keys if last is None else [last, *keys]
        if not all(map(lt, chain, chain[1:])):
            disorder += sum(a >= b for a, b in pairwise(chain))
        low, high = min(keys), max(keys)
        key_min = low if key_min is None else min(key_min, low)
        key_max = high if key_max is None else max(key_max, high)
        seq_min = min(seqs) if rows == 0 else min(seq_min, min(seqs))
        seq_max = max(seq_max, max(seqs))
        rows += len(keys)
        tombstones += dead.count(True)
        strangers += len(keys) - partitions.count(entry.partition)
        crc_sum += sum(crcs)
        seq_xor = reduce(xor, seqs, seq_xor)
        crc32 = zlib.crc32
        bad += sum(
            crc32(seq.to_bytes(8, "big", signed=True), crc32(value or b"", crc32(key))) != crc
            for key, value, seq, crc in zip(keys, values, seqs, crcs, strict=True)
        )
        last = keys[-1]
    if disorder:
        problems.append(f"{entry.path}: {disorder} rows out of key order")
    if strangers:
        problems.append(f"{entry.path}: {strangers} rows of another partition than {entry.partition}")
    return {
        "rows": rows,
        "tombstones": tombstones,
        "bad_rows": bad,
        "key_min_hex": (key_min or b"").hex(),
        "key_max_hex": (key_max or b"").hex(),
        "seq_min": seq_min,
        "seq_max": seq_max,
        "digest": digest_of(crc_sum, seq_xor),
    }
