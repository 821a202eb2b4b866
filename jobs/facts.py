"""Measure SSTables in Spark: per file its counts, bounds, order and digests, and the manifest entry they make.

The compaction verifies its output with it, the audit every file of a store. Only keys are shuffled, for the order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from pyspark.sql import Window
from pyspark.sql import functions as F

from jobs.rows import crc_matches, row_hash
from wire.sstable.manifest import FileEntry
from wire.sstable.schema import digest_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Measured", "entry_differences", "fill_entry", "measure"]


class Measured(NamedTuple):
    """Content of one file."""

    rows: int
    bad_rows: int
    disorder: int  # rows whose key is not above the one before
    repeats: int  # of these, rows with the same key as the one before
    partition_min: int
    partition_max: int
    key_min_hex: str
    key_max_hex: str
    seq_min: int
    seq_max: int
    epoch_min: int
    epoch_max: int
    tombstones: int
    expired: int  # 0 < expiry_ms <= written_ms
    min_expiry_ms: int
    live_bytes: int
    crc_sum: int
    seq_xor: int
    hash_xor: int
    tombstone_seq_min: int | None
    kinds: dict[int, int]

    @property
    def digest(self) -> str:
        """Digest of the rows, whatever their order."""
        return digest_of(self.crc_sum, self.seq_xor)


def measure(rows: DataFrame, expired_at: int | DataFrame, *, with_hash: bool = True) -> dict[str, Measured]:
    """Return facts per file, by its name as Spark spells it (``FileSystem.spark_name``), percent signs decoded.

    Args:
        rows: read_runs of the files.
        expired_at: UTC ms, a number, or a table of them by file: file string, written_ms bigint.
        with_hash: Also hash whole rows.
    """
    named = rows.withColumn("file", F.col("_metadata.file_path"))
    if isinstance(expired_at, int):
        timed, limit = named, F.lit(expired_at)
    else:
        timed, limit = named.join(F.broadcast(expired_at), on="file", how="left"), F.col("written_ms")
    totals = timed.groupBy("file").agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(~crc_matches()).alias("bad_rows"),
        F.min("partition").alias("partition_min"),
        F.max("partition").alias("partition_max"),
        F.min("seq").alias("seq_min"),
        F.max("seq").alias("seq_max"),
        F.min("epoch").alias("epoch_min"),
        F.max("epoch").alias("epoch_max"),
        F.count_if("tombstone").alias("tombstones"),
        F.count_if(F.col("expiry_ms").between(F.lit(1), limit)).alias("expired"),
        F.coalesce(F.min(F.when(F.col("expiry_ms") > 0, F.col("expiry_ms"))), F.lit(0)).alias("min_expiry_ms"),
        F.sum(F.octet_length("key") + F.coalesce(F.octet_length("value"), F.lit(0))).alias("live_bytes"),
        F.sum("crc").alias("crc_sum"),
        F.bit_xor("seq").alias("seq_xor"),
        (F.bit_xor(row_hash()) if with_hash else F.lit(0)).alias("hash_xor"),
        F.min(F.when(F.col("tombstone"), F.col("seq"))).alias("tombstone_seq_min"),
        *[F.count_if(F.col("kind") == kind).alias(f"kind_{kind}") for kind in range(10)],
    )
    orders = _order(named)
    found: dict[str, Measured] = {}
    by_file = {row["file"]: row.asDict() for row in orders.collect()}
    for row in totals.collect():
        plain = row.asDict() | by_file[row["file"]]
        kinds = {kind: plain[f"kind_{kind}"] for kind in range(10) if plain[f"kind_{kind}"]}
        fields = {name: plain[name] for name in Measured._fields if name in plain}
        found[unquote(plain["file"])] = Measured(kinds=kinds, **fields)
    return found


def _order(named: DataFrame) -> DataFrame:
    """Return per file disorder, repeats and exact key bounds. Rows are numbered by the reader, not by arrival."""
    keys = named.select("file", F.col("_metadata.row_index").alias("row_index"), "key")
    in_file = Window.partitionBy("file").orderBy("row_index")
    before = keys.withColumn("before", F.lag("key").over(in_file))
    return before.groupBy("file").agg(
        F.count_if(F.col("before") >= F.col("key")).alias("disorder"),
        F.count_if(F.col("before") == F.col("key")).alias("repeats"),
        F.lower(F.hex(F.min("key"))).alias("key_min_hex"),
        F.lower(F.hex(F.max("key"))).alias("key_max_hex"),
    )


def fill_entry(entry: FileEntry, found: Measured) -> FileEntry:
    """Write the measured facts into a manifest entry and return it."""
    for name in ("rows", "bad_rows", "key_min_hex", "key_max_hex", "seq_min", "seq_max", "epoch_min", "epoch_max"):
        setattr(entry, name, getattr(found, name))
    entry.tombstones = found.tombstones
    entry.expired_at_write = found.expired
    entry.min_expiry_ms = found.min_expiry_ms
    entry.live_bytes = found.live_bytes
    entry.digest = found.digest
    entry.kinds = {str(kind): count for kind, count in sorted(found.kinds.items())}
    return entry


def entry_differences(entry: FileEntry, found: Measured) -> dict[str, str]:
    """Return the fields in which a file is not what its manifest entry says, as ``found, manifest says``."""
    pairs = {
        "rows": found.rows,
        "tombstones": found.tombstones,
        "key_min_hex": found.key_min_hex,
        "key_max_hex": found.key_max_hex,
        "seq_min": found.seq_min,
        "seq_max": found.seq_max,
        "expired_at_write": found.expired,
        "digest": found.digest,
    }
    return {
        name: f"{value}, manifest says {getattr(entry, name)}"
        for name, value in pairs.items()
        if value != getattr(entry, name)
    }
