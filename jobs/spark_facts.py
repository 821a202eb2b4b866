"""Facts of SSTables, measured in Spark; only keys are shuffled, to check the order of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import Window
from pyspark.sql import functions as F

from jobs.facts import MeasuredFacts
from jobs.rows import crc_matches, row_hash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["measure"]


def measure(rows: DataFrame, expired_at: int | DataFrame, *, with_hash: bool = True) -> dict[str, MeasuredFacts]:
    """Return facts per file, by its decoded name in Spark (``FileSystem.spark_name``).

    Args:
        rows: read_runs of the files.
        expired_at: UTC ms for all files, or a table by file: file string, written_ms bigint.
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
    found: dict[str, MeasuredFacts] = {}
    by_file = {row["file"]: row.asDict() for row in orders.collect()}
    for row in totals.collect():
        plain = row.asDict() | by_file[row["file"]]
        kinds = {kind: plain[f"kind_{kind}"] for kind in range(10) if plain[f"kind_{kind}"]}
        fields = {name: plain[name] for name in MeasuredFacts._fields if name in plain}
        found[unquote(plain["file"])] = MeasuredFacts(kinds=kinds, **fields)
    return found


def _order(named: DataFrame) -> DataFrame:
    """Return per file disorder, repeats and exact key bounds. The reader numbers the rows, so arrival is irrelevant."""
    keys = named.select("file", F.col("_metadata.row_index").alias("row_index"), "key")
    in_file = Window.partitionBy("file").orderBy("row_index")
    before = keys.withColumn("before", F.lag("key").over(in_file))
    return before.groupBy("file").agg(
        F.count_if(F.col("before") >= F.col("key")).alias("disorder"),
        F.count_if(F.col("before") == F.col("key")).alias("repeats"),
        F.lower(F.hex(F.min("key"))).alias("key_min_hex"),
        F.lower(F.hex(F.max("key"))).alias("key_max_hex"),
    )
