"""Replicas of a partition, exported at the same op_index, hold the same keys with the same values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from wire.sstable.schema import RowKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["replica_differs"]


def replica_differs(live: DataFrame, pairs: DataFrame) -> DataFrame:
    """Return keys on which replicas at equal op_index differ: partition, key, seq, detail.

    ``seq`` is not compared: a full export stamps rows with its op_index, an increment with the operation's. A replica
    may remove expired and finished rows earlier than another.

    Args:
        live: live_rows of all replicas, with value_hash.
        pairs: replica, partition, group, members: replicas of a partition at one op_index share a group.
    """
    comparable = live.join(F.broadcast(pairs), on=["replica", "partition"], how="inner")
    kept = (F.col("kind") != int(RowKind.OTHER)) & (F.col("expiry_ms") == 0) & ~F.col("finished")
    versions = (
        comparable.where(kept)
        .groupBy("partition", "group", "members", "key")
        .agg(
            F.max("seq").alias("seq"),
            F.count_distinct("replica").alias("holders"),
            F.count_distinct("value_hash").alias("versions"),
        )
    )
    differ = versions.where("holders < members OR versions > 1")
    detail = F.concat(
        *(F.col("holders").cast("string"), F.lit(" of "), F.col("members").cast("string")),
        *(F.lit(" replicas have the key, with "), F.col("versions").cast("string"), F.lit(" values")),
    )
    return differ.select("partition", F.lower(F.hex("key")).alias("key"), "seq", detail.alias("detail"))
