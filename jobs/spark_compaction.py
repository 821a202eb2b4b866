"""The Spark engine of a compaction (interface: ``jobs/merge_engine.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from jobs import merge
from jobs.facts import MeasuredFacts
from jobs.files import FileSystem
from jobs.merge_counts import MergeCounts
from jobs.merge_engine import DamagedRow
from jobs.removed_entries import merge_ranges
from jobs.rows import COLUMN_NAMES, crc_matches, literal_frame, read_runs
from jobs.selection import SelectedPartitions
from jobs.spark import fit_to_size, report_stage
from jobs.spark_facts import measure
from wire.sstable.manifest import FileEntry
from wire.sstable.schema import RowKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkMerge"]

SESSIONS_MAX = 4_000_000  # broadcast to every task, about 100 B each; above, acknowledged rows stay in this run
SESSION_ROWS_PER_TASK = 250_000  # of the query for finished sessions; a task has 0.1 s of overhead
_ROW_GROUP_ROWS = 100_000


class SparkMerge:
    """Merges files with a Spark session."""

    def __init__(self, spark: SparkSession, source: FileSystem, target: FileSystem) -> None:
        self._spark, self._source, self._target = spark, source, target
        self._ring_partitions = 0

    def start(self, rows: int, partitions: int) -> None:
        """Prepare for an input of this size and a ring with this number of partitions."""
        self._ring_partitions = partitions
        fit_to_size(self._spark, rows)

    def merge(
        self, selected: Sequence[SelectedPartitions], now_ms: int, folder: str, *, remove_by_session: bool
    ) -> MergeCounts:
        """Write one run for each partition into a folder of the target; return the counts of the rows."""
        rows = self._rows(selected)
        complete = [s.partition for s in selected if s.complete]
        partitions = [s.partition for s in selected]
        sessions = self._finished_sessions(rows, selected, now_ms) if remove_by_session and complete else None
        kept, observation = merge.merge_rows(
            rows.transform(merge.one_partition_each, partitions, self._ring_partitions)
            .transform(merge.with_rank)
            .transform(merge.with_fate, complete, now_ms, sessions)
        )
        adaptive = self._spark.conf.get("spark.sql.adaptive.enabled")
        self._spark.conf.set("spark.sql.adaptive.enabled", "false")  # it would coalesce partitions into one file
        (
            kept.write.option("compression", "zstd")
            .option("parquet.compression.codec.zstd.level", "1")
            .option("parquet.block.row.count.limit", str(_ROW_GROUP_ROWS))
            .option("parquet.enable.dictionary#key", "false")
            .option("parquet.enable.dictionary#value", "false")
            .mode("errorifexists")
            .parquet(self._target.uri(folder))
        )
        self._spark.conf.set("spark.sql.adaptive.enabled", str(adaptive))
        if sessions is not None:
            sessions.unpersist()
        for name in self._target.names(folder):  # no manifest lists Spark's marker and checksum files
            if not name.endswith(".parquet") or name.startswith("."):
                self._target.delete(f"{folder}/{name}")
        return merge.counts_of(observation.get)

    def _rows(self, selected: Sequence[SelectedPartitions]) -> DataFrame:
        return read_runs(self._spark, [self._source.uri(f.path) for s in selected for f in s.files])

    def _finished_sessions(
        self, rows: DataFrame, selected: Sequence[SelectedPartitions], now_ms: int
    ) -> DataFrame | None:
        """Return the sessions with removable rows, None if there are none or too many to broadcast.

        The number of session rows sets the query's tasks: 200 tasks for some thousand sessions dominated a small
        compaction.
        """
        complete = [s.partition for s in selected if s.complete]
        kinds = (str(int(RowKind.SESSION)), str(int(RowKind.WILL)))
        few = sum(f.kinds.get(kind, 0) for s in selected if s.complete for f in s.files for kind in kinds)
        tasks = self._spark.conf.get("spark.sql.shuffle.partitions")
        assert tasks is not None
        wanted = min(int(tasks), few // SESSION_ROWS_PER_TASK + 1)
        self._spark.conf.set("spark.sql.shuffle.partitions", str(wanted))
        sessions = merge.finished_sessions(rows.where(F.col("partition").isin(*complete)), now_ms).cache()
        count = sessions.count()
        self._spark.conf.set("spark.sql.shuffle.partitions", tasks)
        report_stage(f"{count} sessions with finished entries")
        if count > SESSIONS_MAX:
            report_stage(f"more than {SESSIONS_MAX}: acknowledged entries stay; compact fewer partitions at a time")
        if not 0 < count <= SESSIONS_MAX:
            sessions.unpersist()
            return None
        return sessions

    def write_damaged(self, files: Sequence[FileEntry], folder: str) -> list[DamagedRow]:
        """Copy bad and misfiled rows with their file's name into a folder of the target; return them."""
        listed = literal_frame(
            self._spark,
            [{"file": self._source.spark_name(f.path), "path": f.path, "file_partition": f.partition} for f in files],
            "file string, path string, file_partition int",
        )
        rows = read_runs(self._spark, [self._source.uri(f.path) for f in files], damaged=True).select(
            *COLUMN_NAMES, F.col("_metadata.file_path").alias("file")
        )
        bad = (
            rows.join(F.broadcast(listed), on="file", how="left")
            .withColumn("crc_matches", crc_matches())
            .where(~F.col("crc_matches") | (F.col("partition") != F.col("file_partition")))
            .drop("file")
        )
        bad.coalesce(1).write.option("compression", "zstd").mode("errorifexists").parquet(self._target.uri(folder))
        written = self._spark.read.parquet(self._target.uri(folder))
        found = written.select("path", "file_partition", "partition", "key", "seq", "crc_matches").collect()
        for name in self._target.names(folder):
            if not name.endswith(".parquet") or name.startswith("."):
                self._target.delete(f"{folder}/{name}")
        return [DamagedRow(row[0], row[1], row[2], bytes(row[3] or b""), row[4], row[5]) for row in found]

    def measure(self, paths: Sequence[str], now_ms: int) -> dict[str, MeasuredFacts]:
        """Return the facts of the target's files by path, without files that have no rows."""
        if not paths:
            return {}
        found = measure(read_runs(self._spark, [self._target.uri(path) for path in paths]), now_ms)
        named = {path: found.get(unquote(self._target.spark_name(path))) for path in paths}
        return {path: facts for path, facts in named.items() if facts is not None}

    def count_expired(self, selected: Sequence[SelectedPartitions], now_ms: int) -> dict[int, int]:
        """Return the number of expired queue entries of each complete partition."""
        complete = [s.partition for s in selected if s.complete]
        expired = self._rows(selected).where(
            (F.col("kind") == int(RowKind.QUEUED))
            & F.col("expiry_ms").between(1, now_ms)
            & F.col("partition").isin(*complete)
        )
        counted = expired.groupBy("partition").agg(F.count_distinct("key").alias("entries"))
        return {row["partition"]: row["entries"] for row in counted.collect()}

    def list_expired(
        self, selected: Sequence[SelectedPartitions], now_ms: int
    ) -> dict[int, list[tuple[int, int, int]]]:
        """Return expired entries, and those of expired sessions, as ranges: session, first and last session_seq."""
        rows = self._rows(selected).where(F.col("partition").isin(*[s.partition for s in selected if s.complete]))
        of_session = Window.partitionBy("partition", "session_id").orderBy("session_seq")
        over = merge.finished_sessions(rows, now_ms).where("session_expired").cache()
        queued = rows.where(F.col("kind") == int(RowKind.QUEUED))
        of_over = queued.join(over, on=["partition", "session_id"], how="left_semi")
        names = "partition", "session_id", "session_seq"
        gaps = over.select("partition", "session_id", F.explode("session_acked_gaps").alias("session_seq"))
        entries = (
            queued.where(F.col("expiry_ms").between(1, now_ms))
            .select(*names)
            .unionByName(of_over.select(*names))
            .unionByName(gaps)
            .distinct()
            .withColumn("run", F.col("session_seq") - F.row_number().over(of_session))
            .groupBy("partition", "session_id", "run")
            .agg(F.min("session_seq").alias("first"), F.max("session_seq").alias("last"))
        )
        up_to = over.where("session_acked_up_to IS NOT NULL").select(
            "partition",
            "session_id",
            F.lit(0).cast("bigint").alias("first"),
            F.col("session_acked_up_to").alias("last"),
        )
        found: dict[int, list[tuple[int, int, int]]] = {}
        for row in up_to.unionByName(entries.drop("run")).collect():  # ranges, not entries
            found.setdefault(row["partition"], []).append((row["session_id"], row["first"], row["last"]))
        over.unpersist()
        return {partition: merge_ranges(ranges) for partition, ranges in found.items()}
