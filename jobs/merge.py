"""The merge of a compaction as DataFrame functions: one shuffle, one sort, a fate for every row.

    rows -> by partition, key and version -> rank -> fate -> kept rows, already in order

Every row gets exactly one fate, and the writing pass counts them all. Unless rows in equal rows out plus removed rows,
the result is not published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation, Window
from pyspark.sql import functions as F

from jobs.merge_counts import ACKNOWLEDGED, EXPIRED, FATES, KEPT, SUPERSEDED, TOMBSTONE, MergeCounts
from jobs.rows import COLUMN_NAMES, crc_matches, row_hash
from wire.sstable.schema import RowKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

__all__ = ["finished_sessions", "merge_rows", "one_partition_each", "with_fate", "with_rank"]

# A message that was sent under a packet identifier no longer expires (MQTT 5.0 section 3.3.2.3.3). The primary ends
# wills and connected sessions. A body is removed with its last reference.
_QUEUED, _RETAINED = F.lit(int(RowKind.QUEUED)), F.lit(int(RowKind.RETAINED))


def one_partition_each(rows: DataFrame, partitions: Sequence[int], total: int) -> DataFrame:
    """Shuffle so that task i has all rows of partition i of the list, sorted newest version first.

    ``repartition`` by hash could put two partitions into one task, and so into one file.
    """
    if list(partitions) == list(range(total)):
        slot: Column = F.col("partition")
    else:
        known = F.array(*[F.lit(p) for p in partitions])
        slot = (F.array_position(known, F.col("partition")) - 1).cast("int")
    return (
        rows.withColumn("slot", slot)
        .repartitionById(len(partitions), F.col("slot"))
        .sortWithinPartitions("slot", "key", F.desc("seq"), F.desc("epoch"), F.desc("crc"))
    )


def with_rank(rows: DataFrame) -> DataFrame:
    """Add rank: 1 for the newest version of a key. The distribution and order need no second shuffle."""
    versions = Window.partitionBy("slot", "key").orderBy(F.desc("seq"), F.desc("epoch"), F.desc("crc"))
    return rows.withColumn("rank", F.row_number().over(versions))


def finished_sessions(rows: DataFrame, now_ms: int) -> DataFrame:
    """Return the sessions with removable rows: partition, session_id, session_expired, acked_up_to, acked_gaps.

    From the newest live SESSION rows of complete merges only. An expired session with a will is kept: its primary
    publishes the will.
    """
    few = rows.where(F.col("kind").isin(int(RowKind.SESSION), int(RowKind.WILL)) & crc_matches())
    versions = Window.partitionBy("partition", "key").orderBy(F.desc("seq"), F.desc("epoch"), F.desc("crc"))
    live = few.withColumn("rank", F.row_number().over(versions)).where("rank = 1 AND NOT tombstone")
    by_session = live.where("session_id IS NOT NULL").groupBy("partition", "session_id")
    facts = by_session.agg(
        F.max(F.col("kind") == int(RowKind.WILL)).alias("has_will"),
        F.max(F.when(F.col("kind") == int(RowKind.SESSION), F.col("expiry_ms"))).alias("session_expiry_ms"),
        F.max("acked_up_to").alias("session_acked_up_to"),
        F.max("acked_gaps").alias("session_acked_gaps"),
    )
    over = F.col("session_expiry_ms").between(1, now_ms) & ~F.col("has_will")
    facts = facts.withColumn("session_expired", F.coalesce(over, F.lit(False)))
    return facts.where("session_expired OR session_acked_up_to IS NOT NULL").drop("has_will", "session_expiry_ms")


def with_fate(ranked: DataFrame, complete: Sequence[int], now_ms: int, sessions: DataFrame | None) -> DataFrame:
    """Add fate, a position in FATES.

    Args:
        complete: Partitions with all files as inputs; in others only superseded versions are removed.
        sessions: Result of finished_sessions, small enough to broadcast; None disables the removal by session.
    """
    expired = F.col("expiry_ms").between(1, now_ms) & (
        (F.col("kind") == _RETAINED) | ((F.col("kind") == _QUEUED) & F.col("packet_identifier").isNull())
    )
    acknowledged: Column = F.lit(False)
    if sessions is not None:
        ranked = ranked.join(F.broadcast(sessions), on=["partition", "session_id"], how="left")
        expired = expired | F.coalesce("session_expired", F.lit(False))
        finished = (F.col("session_seq") <= F.col("session_acked_up_to")) | F.coalesce(
            F.array_contains("session_acked_gaps", F.col("session_seq")), F.lit(False)
        )
        entries = F.col("kind").isin(int(RowKind.QUEUED), int(RowKind.INFLIGHT_OUT))
        acknowledged = entries & F.coalesce(finished, F.lit(False))
    fate = (
        F.when(F.col("rank") > 1, SUPERSEDED)
        .when(~F.col("partition").isin(*complete) if complete else F.lit(True), KEPT)
        .when(F.col("tombstone"), TOMBSTONE)
        .when(expired, EXPIRED)
        .when(acknowledged, ACKNOWLEDGED)
        .otherwise(KEPT)
    )
    return ranked.withColumn("fate", fate)


def merge_rows(fated: DataFrame) -> tuple[DataFrame, Observation]:
    """Return the kept rows in SSTable columns, and the observation of counts, complete after the write."""
    observation = Observation()
    fates = [F.count_if(F.col("fate") == number).alias(f"fate_{name}") for number, name in enumerate(FATES)]
    counted = fated.observe(
        observation,
        F.count(F.lit(1)).alias("rows_in"),
        F.coalesce(F.sum("crc"), F.lit(0)).alias("crc_in"),
        F.coalesce(F.sum(F.col("partition").cast("bigint")), F.lit(0)).alias("partition_sum"),
        F.coalesce(F.sum(F.col("partition").cast("bigint") * F.col("partition")), F.lit(0)).alias("partition_squares"),
        F.count_if(~crc_matches()).alias("bad"),
        F.coalesce(F.bit_xor(F.when(F.col("fate") == KEPT, row_hash())), F.lit(0)).alias("hash_out"),
        *fates,
    )
    return counted.where(F.col("fate") == KEPT).select(*COLUMN_NAMES), observation


def counts_of(observed: dict[str, Any]) -> MergeCounts:
    """Return an observation's counts."""
    by_fate = {name: int(observed[f"fate_{name}"]) for name in FATES}
    rest = {name: int(value) for name, value in observed.items() if not name.startswith("fate_")}
    return MergeCounts(by_fate=by_fate, **rest)
