"""The Spark engine of an audit (interface: ``jobs/audit_engine.py``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs import store_rules
from jobs.audit_engine import EXAMPLES_MAX, LedgerFolder, PresentRows, ProofInput, ProofResult, Violations
from jobs.facts import MeasuredFacts
from jobs.file_rules import ReplicaFiles
from jobs.files import FileSystem
from jobs.proof import account, read_ledgers, summarize
from jobs.removed_entries import merge_ranges
from jobs.replica_rules import replica_differs
from jobs.report_tables import collect_tables
from jobs.rows import crc_matches, literal_frame, read_runs
from jobs.spark import fit_to_size, tasks_max
from jobs.spark_facts import measure
from wire.sstable.schema import RowKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkAudit"]

TASKS_PER_SHUFFLE = 4  # partitions differ in size: several tasks per core balance the load
SESSIONS_BROADCAST_MAX = 1_000_000
_COALESCE = "spark.sql.adaptive.coalescePartitions.enabled"


class SparkAudit:
    """Rows of all replicas, cached in the session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._stores: Mapping[str, FileSystem] = {}
        self._replicas: Sequence[ReplicaFiles] = ()
        self._present: Sequence[PresentRows] = ()
        self._kept: DataFrame | None = None

    def start(self, rows: int, replicas: Sequence[ReplicaFiles], stores: Mapping[str, FileSystem]) -> None:
        """Prepare the session for this number of rows in files and ledgers."""
        self._replicas, self._stores = replicas, stores
        self._spark.conf.set("spark.sql.adaptive.enabled", "true")
        # Coalescing would leave the cached rows in one or two partitions, and later rules on one core.
        self._spark.conf.set(_COALESCE, "false")
        # The cached rows are partitioned: windows, groups and joins with partition among their keys need no shuffle.
        self._spark.conf.set("spark.sql.optimizer.canChangeCachedPlanOutputPartitioning", "false")
        self._spark.conf.set("spark.sql.requireAllClusterKeysForCoPartition", "false")
        fit_to_size(self._spark, rows)

    # -- files -------------------------------------------------------------------------------------------------------

    def measure(self, present: Sequence[PresentRows]) -> dict[tuple[int, str], MeasuredFacts]:
        """Return the facts of files by replica and path, without files that have no readable row."""
        self._present = present
        found = measure(self._rows(), self._listed().drop("replica"), with_hash=False)
        facts: dict[tuple[int, str], MeasuredFacts] = {}
        for each in present:
            measured = found.get(unquote(self._stores[each.uri].spark_name(each.entry.path)))
            if measured is not None:
                facts[each.replica, each.entry.path] = measured
        return facts

    def _rows(self) -> DataFrame:
        """Return the rows of all existing files; of changed files the readable part, so that others are read too."""
        whole: list[str] = []
        changed: list[str] = []
        for each in self._present:
            (changed if each.changed else whole).append(self._stores[each.uri].uri(each.entry.path))
        columns = ["*", "_metadata"]
        rows = read_runs(self._spark, whole or changed, damaged=not whole)
        if whole and changed:
            return rows.select(*columns).unionByName(read_runs(self._spark, changed, damaged=True).select(*columns))
        return rows

    def _listed(self) -> DataFrame:
        return literal_frame(
            self._spark,
            [
                {
                    "file": self._stores[each.uri].spark_name(each.entry.path),
                    "replica": each.replica,
                    "written_ms": each.entry.written_ms,
                }
                for each in self._present
            ],
            "file string, replica int, written_ms bigint",
        )

    # -- rows --------------------------------------------------------------------------------------------------------

    def read(self, *, skip_bad: bool) -> None:
        """Cache the rows for the rules, with one shuffle by partition for all of them."""
        versions = self._versions(skip_bad)
        partitions = len({f.partition for r in self._replicas for f in r.files})
        by_size = int(str(self._spark.conf.get("spark.sql.shuffle.partitions")))
        tasks = TASKS_PER_SHUFFLE * max(1, min(by_size, partitions))  # tasks beyond the partitions have no rows
        tasks = min(tasks, tasks_max(self._spark) or tasks)
        newest = versions.repartition(tasks, "partition").transform(store_rules.newest_versions)
        sessions = sum(f.kinds.get(str(int(RowKind.SESSION)), 0) for r in self._replicas for f in r.files)
        broadcast = sessions <= SESSIONS_BROADCAST_MAX
        self._kept = store_rules.live_rows(newest, versions, broadcast=broadcast).cache()

    def _versions(self, skip_bad: bool) -> DataFrame:
        """Return all versions of all replicas, with the columns of the rules."""
        rows = self._rows()
        if skip_bad:
            rows = rows.where(crc_matches())
        if len(self._replicas) == 1:
            return rows.select(*store_rules.NEWEST_COLUMNS, F.lit(0).alias("replica"))
        value_hash = F.xxhash64("value").alias("value_hash")  # crc covers seq, which differs between copies
        file = F.col("_metadata.file_path").alias("file")
        named = rows.select(*store_rules.NEWEST_COLUMNS, value_hash, file)
        return named.join(F.broadcast(self._listed().drop("written_ms")), on="file", how="inner").drop("file")

    def _live(self) -> DataFrame:
        assert self._kept is not None
        return self._kept.where("NOT conflict")

    def check(
        self, replica: ReplicaFiles
    ) -> tuple[dict[str, Violations], dict[int, list[tuple[int, str, int, str, int]]]]:
        """Return violations by rule, and by partition the sessions with missing entries and their number."""
        one = self._live().where(f"replica = {replica.number}")
        found = {name: one.transform(rule) for name, rule in store_rules.STORE_RULES.items()}
        found["session_in_wrong_partition"] = one.transform(
            store_rules.session_in_wrong_partition, replica.manifest.ring.partitions
        )
        gaps: dict[int, list[tuple[int, str, int, str, int]]] = defaultdict(list)
        for row in one.transform(store_rules.session_seq_gaps).collect():
            gaps[row["partition"]].append((row["partition"], row["key"], row["seq"], row["detail"], row["missing"]))
        return self._violations(found), gaps

    def conflicts(self) -> Violations:
        """Return rows with another row's key and seq but different content, of all replicas."""
        assert self._kept is not None
        return self._violations({"": self._kept.transform(store_rules.conflicting_versions)})[""]

    def compare(self, groups: Sequence[tuple[int, int, int, int]]) -> Violations:
        """Return keys that differ between copies; groups are (replica, partition, op_index, members)."""
        names = ("replica", "partition", "group", "members")
        frame = literal_frame(
            self._spark,
            [dict(zip(names, group, strict=True)) for group in groups],
            "replica int, partition int, group bigint, members int",
        )
        return self._violations({"": self._live().transform(replica_differs, frame)})[""]

    @staticmethod
    def _violations(found: Mapping[str, DataFrame]) -> dict[str, Violations]:
        """Collect the first violations of each rule with one query, and count rules with more."""
        columns = ["finding", "partition", "key", "seq", "detail"]
        queries = [
            rows.withColumn("finding", F.lit(name)).select(*columns).limit(EXAMPLES_MAX + 1)
            for name, rows in found.items()
        ]
        by_name: dict[str, list[tuple[int, str, int, str]]] = {name: [] for name in found}
        for row in reduce(DataFrame.unionByName, queries).collect():
            by_name[row["finding"]].append((row["partition"], row["key"], row["seq"], row["detail"]))
        return {
            name: Violations(len(rows) if len(rows) <= EXAMPLES_MAX else found[name].count(), rows)
            for name, rows in by_name.items()
        }

    # -- ledgers, report ---------------------------------------------------------------------------------------------

    def prove(self, given: ProofInput) -> ProofResult:
        """Account for each acknowledged message."""
        records = read_ledgers(self._spark, given.ledgers).cache()
        frame = literal_frame(
            self._spark, [{"p": p, "exported": n} for p, n in given.exported.items()], "p int, exported bigint"
        )
        live = self._newest_copies(given.newest)
        ranges = [
            {"p": partition, "s": session, "first": first, "last": last}
            for partition, of in given.removed.items()
            for session, first, last in merge_ranges(of)
        ]
        removed = literal_frame(self._spark, ranges, "p int, s bigint, first bigint, last bigint")
        accounted = account(records.where("e IS NOT NULL"), live, frame, removed).cache()
        proof = summarize(accounted)
        none = Violations(0, [])
        debts = {"lost": none, "duplicated": none}
        if proof.lost or proof.duplicated:
            detail = F.concat(F.lit("origin "), "o", F.lit(" session "), F.col("s").cast("string")).alias("detail")
            listed = accounted.select(
                F.col("p").alias("partition"), F.lit("").alias("key"), F.lit(-1).alias("seq"), detail,
                "state", "duplicated",
            )  # fmt: skip
            debts = self._violations({"lost": listed.where("state = 'LOST'"), "duplicated": listed.where("duplicated")})
        folders = self._folders(records)
        accounted.unpersist()
        records.unpersist()
        return ProofResult(proof, folders, debts["lost"], debts["duplicated"])

    @staticmethod
    def _folders(records: DataFrame) -> list[LedgerFolder]:
        by_folder = records.groupBy("folder").agg(
            F.max(F.when(F.col("e") == "started", F.col("r"))).alias("tier"),
            F.max(F.when((F.col("e") == "stopped") & F.col("r").startswith("full"), F.col("r"))).alias("stopped"),
            F.count_if(F.col("broken").isNotNull()).alias("broken"),
        )
        return [LedgerFolder(row["folder"], row["tier"], row["stopped"], row["broken"]) for row in by_folder.collect()]

    def _newest_copies(self, newest: Mapping[int, int]) -> DataFrame:
        if len(self._replicas) == 1:
            return self._live()
        rows = [{"partition": partition, "replica": replica} for partition, replica in newest.items()]
        pairs = literal_frame(self._spark, rows, "partition int, replica int")
        return self._live().join(F.broadcast(pairs), on=["partition", "replica"], how="left_semi")

    def tables(self, newest: Mapping[int, int], now_ms: int) -> dict[str, list[dict[str, Any]]]:
        """Return the small tables of the report, from one replica of each partition."""
        self._spark.conf.set(_COALESCE, "true")  # the rows are cached; later shuffles have few groups
        return collect_tables(self._newest_copies(newest), now_ms)

    def close(self) -> None:
        """Release the cached rows."""
        if self._kept is not None:
            self._kept.unpersist()
