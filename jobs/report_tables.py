"""Small tables for the report, aggregated in Spark: sessions by age, queue depths, rows by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from jobs.report_classes import DEPTHS, EXPIRY_HOURS, LONGEST_QUEUES
from wire.sstable.schema import RowKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["collect_tables"]

_HOUR_MS = 3_600_000


def collect_tables(live: DataFrame, now_ms: int) -> dict[str, list[dict[str, Any]]]:
    """Return rows of kinds, queue_depths and sessions; each table is small for any store."""
    live = live.where("NOT finished")
    return {
        "kinds": _collect(live.groupBy("kind").agg(F.count(F.lit(1)).alias("rows")).orderBy("kind")),
        "queue_depths": _collect(_queue_depths(live)),
        "session_expiries": _collect(_session_expiries(live, now_ms)),
        "session_ages": _collect(_session_ages(live)),
        "longest_queues": _collect(_longest_queues(live)),
    }


def _collect(rows: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in rows.collect()]


def _depths(live: DataFrame) -> DataFrame:
    entries = live.where(F.col("kind") == int(RowKind.QUEUED))
    depths = entries.groupBy("partition", "session_id").agg(F.count(F.lit(1)).alias("depth"))
    sessions = live.where(F.col("kind") == int(RowKind.SESSION)).select("partition", "session_id", "client_id")
    return sessions.join(depths, on=["partition", "session_id"], how="left").fillna(0, subset=["depth"])


def _queue_depths(live: DataFrame) -> DataFrame:
    """Return sessions per class of queue depth; a class is named by its upper bound, the last by -1."""
    bound: Any = F.lit(-1)
    for depth in reversed(DEPTHS):
        bound = F.when(F.col("depth") <= depth, depth).otherwise(bound)
    return _depths(live).groupBy(bound.alias("up_to")).agg(F.count(F.lit(1)).alias("sessions"))


def _longest_queues(live: DataFrame) -> DataFrame:
    return _depths(live).orderBy(F.desc("depth"), "session_id").limit(LONGEST_QUEUES)


def _session_expiries(live: DataFrame, now_ms: int) -> DataFrame:
    """Return sessions by hours until expiry; -1 is later than all classes, -2 connected or never."""
    left = F.col("expiry_ms") - now_ms
    bound: Any = F.lit(-1)
    for hours in reversed(EXPIRY_HOURS):
        bound = F.when(left <= hours * _HOUR_MS, hours).otherwise(bound)
    bound = F.when(F.col("expiry_ms") == 0, -2).otherwise(bound)
    sessions = live.where(F.col("kind") == int(RowKind.SESSION))
    return sessions.groupBy(bound.alias("hours")).agg(F.count(F.lit(1)).alias("sessions"))


def _session_ages(live: DataFrame) -> DataFrame:
    """Return sessions by age: operations of the partition since the session row changed, in tenths of all."""
    last = live.groupBy("partition").agg(F.max("seq").alias("last"))
    sessions = live.where(F.col("kind") == int(RowKind.SESSION)).join(F.broadcast(last), on="partition", how="inner")
    tenth = F.least(F.floor(10 * (F.col("last") - F.col("seq")) / F.greatest("last", F.lit(1))), F.lit(9))
    return sessions.groupBy(tenth.cast("int").alias("tenth")).agg(F.count(F.lit(1)).alias("sessions"))
