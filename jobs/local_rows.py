"""Read SSTables of local folders in this process: rows as tuples, and the facts of each file.

The counterpart of ``jobs/rows.py`` and ``jobs/spark_facts.py`` for the local engine.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobs.facts import MeasuredFacts
from wire.sstable.schema import COLUMN_INDEX, Row, arrow_schema

__all__ = ["BATCH_ROWS", "batch_rows", "crc_matches", "measure_rows", "read_rows", "row_hash"]

BATCH_ROWS = 20_000  # decoded at a time
_KEY, _SEQ, _VALUE, _CRC = (COLUMN_INDEX[name] for name in ("key", "seq", "value", "crc"))
_PARTITION, _KIND, _TOMBSTONE, _EXPIRY_MS, _EPOCH, _ACKED_GAPS = (
    COLUMN_INDEX[name] for name in ("partition", "kind", "tombstone", "expiry_ms", "epoch", "acked_gaps")
)


def read_rows(path: Path, *, damaged: bool = False, batches: list[Any] | None = None) -> Iterator[Row]:
    """Yield the rows of a file in their order.

    Args:
        damaged: End without an error where a changed file becomes unreadable.
        batches: Receives the Arrow batches as well, for ``batch_rows``.
    Raises:
        OSError: The file cannot be read (pyarrow's own errors are converted).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = arrow_schema()
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            names = file.schema_arrow.names
            missing = [name for name in COLUMN_INDEX if name not in names]
            if missing:
                raise OSError(f"{path}: no column {missing[0]}")
            # Threads pay for large row groups only; many small files are what this engine is for.
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(COLUMN_INDEX), use_threads=False):
                if not batch.schema.equals(schema):
                    batch = pa.Table.from_batches([batch]).select(list(COLUMN_INDEX)).cast(schema)
                if batches is not None:
                    batches.append(batch)
                yield from batch_rows(batch)
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError also covers damaged UTF-8
        if not damaged:
            raise error if isinstance(error, OSError) else OSError(f"{path}: {error}") from error


def batch_rows(batch: Any) -> Iterator[Row]:
    """Return the rows of an Arrow batch in SSTable columns."""
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def crc_matches(row: Row) -> bool:
    """Return whether the row's crc matches its key, value and seq."""
    crc = zlib.crc32(row[_KEY])
    if row[_VALUE]:
        crc = zlib.crc32(row[_VALUE], crc)
    return bool(zlib.crc32(row[_SEQ].to_bytes(8, "big", signed=True), crc) == row[_CRC])


def row_hash(row: Row) -> int:
    """Return a hash over every column; the xor over rows is a digest within this process."""
    gaps = row[_ACKED_GAPS]  # the only list
    return hash(row if gaps is None else (*row[:_ACKED_GAPS], tuple(gaps), *row[_ACKED_GAPS + 1 :]))


def measure_rows(rows: Iterator[Row], expired_at_ms: int, *, keep: list[Row] | None = None) -> MeasuredFacts | None:
    """Return the facts of one file's rows, None for no rows.

    Args:
        expired_at_ms: UTC ms at which rows count as expired.
        keep: List that receives the rows too.
    """
    found: dict[str, Any] = dict.fromkeys(MeasuredFacts._fields, 0)
    kinds: dict[int, int] = {}
    before: bytes | None = None
    key_min = key_max = b""
    tombstone_seq_min: int | None = None
    for row in rows:
        if keep is not None:
            keep.append(row)
        key, seq, expiry_ms = row[_KEY], row[_SEQ], row[_EXPIRY_MS]
        if not found["rows"]:
            key_min = key_max = key
            found["partition_min"] = found["partition_max"] = row[_PARTITION]
            found["seq_min"] = found["seq_max"] = seq
            found["epoch_min"] = found["epoch_max"] = row[_EPOCH]
        else:
            key_min, key_max = min(key_min, key), max(key_max, key)
            found["disorder"] += before >= key
            found["repeats"] += before == key
            found["partition_min"] = min(found["partition_min"], row[_PARTITION])
            found["partition_max"] = max(found["partition_max"], row[_PARTITION])
            found["seq_min"], found["seq_max"] = min(found["seq_min"], seq), max(found["seq_max"], seq)
            found["epoch_min"] = min(found["epoch_min"], row[_EPOCH])
            found["epoch_max"] = max(found["epoch_max"], row[_EPOCH])
        before = key
        found["rows"] += 1
        found["bad_rows"] += not crc_matches(row)
        found["crc_sum"] += row[_CRC]
        found["seq_xor"] ^= seq
        found["hash_xor"] ^= row_hash(row)
        found["live_bytes"] += len(key) + len(row[_VALUE] or b"")
        kinds[row[_KIND]] = kinds.get(row[_KIND], 0) + 1
        if expiry_ms > 0:
            found["expired"] += expiry_ms <= expired_at_ms
            found["min_expiry_ms"] = min(found["min_expiry_ms"] or expiry_ms, expiry_ms)
        if row[_TOMBSTONE]:
            found["tombstones"] += 1
            tombstone_seq_min = seq if tombstone_seq_min is None else min(tombstone_seq_min, seq)
    if not found["rows"]:
        return None
    found |= {
        "key_min_hex": key_min.hex(),
        "key_max_hex": key_max.hex(),
        "kinds": kinds,
        "tombstone_seq_min": tombstone_seq_min,
    }
    return MeasuredFacts(**found)
