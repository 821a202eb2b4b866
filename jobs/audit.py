"""Audit exported stores: is every file what it was, do the rows agree, is every acknowledged message accounted for?

    stratamq jobs audit --input DIR [--input REPLICA ...] [--ledger DIR ...] [--output DIR]
    spark-submit --master ... --py-files stratamq-jobs.zip jobs/audit.py --input URI ...

Reads only. The checks of files are in ``jobs/file_rules.py``, between rows in ``jobs/store_rules.py``, between replicas
in ``jobs/replica_rules.py``, the proof from ledgers in ``jobs/proof.py``; names of findings: docs/jobs.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from jobs.audit_result import AuditResult
from jobs.file_rules import Replica, content_findings, identity_findings, lineage_findings
from jobs.files import FileFacts, FileSystem, local_rows, open_directory
from jobs.findings import ExitCode, Finding, Severity
from jobs.report_page import page_unavailable_reason
from jobs.spark import (
    SMALL_ROWS,
    SparkUnavailable,
    close_session,
    could_not_run,
    fit_to_size,
    open_session,
    report_stage,
)
from jobs.words import JobParser, spark_options
from wire.sstable.ledger import LEDGER_SUFFIXES
from wire.sstable.manifest import FileEntry, Manifest, ManifestDamaged, decode_manifest, manifest_name, manifest_numbers
from wire.sstable.schema import RowKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jobs.facts import Measured

__all__ = ["main", "run_audit"]

TASKS_PER_SHUFFLE = 4  # partitions differ in size: with several tasks a core none waits long for another
SESSIONS_BROADCAST_MAX = 1_000_000
LEDGER_RECORD_BYTES = 40  # of a record in a ledger file, about; compressed ones have fewer
EXAMPLES_MAX = 100  # findings listed per rule and replica; the total is in the detail of the last one


def run_audit(
    inputs: Sequence[str],
    ledgers: Sequence[str] = (),
    *,
    spark: SparkSession | None = None,
    tables: bool = False,
) -> AuditResult:
    """Audit the newest manifest of each input; several inputs, or nodes of one, are replicas of each other.

    Args:
        ledgers: Directories of ledger files, of all edges and of all storage nodes; turns the proof on.
        tables: Also compute the small tables that the report draws.
    Raises:
        FileNotFoundError: If an input has no manifest at all.
    """
    return _Audit(spark or open_session("stratamq-audit"), list(inputs), list(ledgers)).run(tables)


class _Audit:
    """One run over inputs that are read once."""

    def __init__(self, spark: SparkSession, inputs: list[str], ledgers: list[str]) -> None:
        self.spark = spark
        self.inputs = inputs
        self.ledgers = ledgers
        self.result = AuditResult()
        self.stores: dict[str, FileSystem] = {uri: open_directory(spark, uri) for uri in inputs}
        self.ancestors: dict[str, dict[str, FileEntry]] = {}
        self.replicas: list[Replica] = []
        self.input_of: dict[int, str] = {}
        self.changed: set[tuple[str, str]] = set()  # input, path
        self.present: list[tuple[int, FileEntry]] = []
        self._started = time.monotonic()

    def run(self, tables: bool) -> AuditResult:
        self.spark.conf.set("spark.sql.adaptive.enabled", "true")
        # Coalescing would leave the cached rows in one or two partitions, and all rules after it to one core.
        self.spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
        # The cached rows lie by partition: windows, groups and joins that have partition among their keys stay there.
        self.spark.conf.set("spark.sql.optimizer.canChangeCachedPlanOutputPartitioning", "false")
        self.spark.conf.set("spark.sql.requireAllClusterKeysForCoPartition", "false")
        for uri in self.inputs:
            self._read_manifest(uri)
        records = sum(size for _, size in self._ledger_files()) // LEDGER_RECORD_BYTES
        fit_to_size(self.spark, sum(f.rows for r in self.replicas for f in r.files) + records)
        self._identify()
        self._done("identified", f"{len(self.present)} files identified")
        self._measure()
        self._done("measured", f"{sum(f.rows for r in self.replicas for f in r.files)} rows measured")
        kept = self._live_rows().cache()
        live = kept.where("NOT conflict")
        try:
            self._check_rows(live, kept)
            self._done("rows", "rules between rows checked")
            if self.ledgers:
                self._prove(live)
                self._done("proof", "ledgers accounted for")
            if tables:
                from jobs.report_tables import collect_tables

                newest = live.transform(self._newest_copies)
                self.result.tables = collect_tables(newest, self.replicas[0].manifest.created_ms)
                self._done("tables", "report tables collected")
        finally:
            kept.unpersist()
        self.result.findings.sort()
        return self.result

    def _done(self, name: str, text: str) -> None:
        now = time.monotonic()
        self.result.seconds[name] = round(now - self._started, 3)
        report_stage(f"{text} ({now - self._started:.1f} s)")
        self._started = now

    # -- files -------------------------------------------------------------------------------------------------------

    def _read_manifest(self, uri: str) -> None:
        """Take the newest manifest; a damaged one is a finding, and the newest readable one is looked at instead."""
        store = self.stores[uri]
        manifest: Manifest | None = None
        known: dict[str, FileEntry] = {}
        for number in reversed(manifest_numbers(store.names())):
            try:
                read = decode_manifest(store.read(manifest_name(number)))
            except ManifestDamaged as error:
                self.result.add(Finding("manifest_damaged", Severity.ERROR, manifest_name(number), detail=str(error)))
                continue
            manifest = manifest or read
            for entry in read.files:
                known.setdefault(entry.sha256, entry)
        if manifest is None:
            raise FileNotFoundError(f"no readable manifest in {uri}")
        self.result.manifests[uri] = manifest
        self.ancestors[uri] = known
        by_node: dict[str, list[FileEntry]] = defaultdict(list)
        for entry in manifest.files:
            by_node[entry.node if manifest.replica_op_index else ""].append(entry)
        for node, files in sorted(by_node.items()):
            number = len(self.replicas)
            self.replicas.append(Replica(number, f"{uri}#{node}" if node else uri, manifest, tuple(files), node))
            self.input_of[number] = uri

    def _store(self, replica: int) -> FileSystem:
        return self.stores[self.input_of[replica]]

    def _identify(self) -> None:
        for replica in self.replicas:
            uri = self.input_of[replica.number]
            facts = self.stores[uri].identify([f.path for f in replica.files])
            for entry in replica.files:
                found: FileFacts | None = facts[entry.path]
                for finding in identity_findings(entry, found, self.ancestors[uri]):
                    self.result.add(finding)
                if found is not None:
                    self.present.append((replica.number, entry))
                    if found != (entry.bytes, entry.sha256):
                        self.changed.add((uri, entry.path))

    def _rows(self) -> DataFrame:
        """Rows of all files that are there; of changed ones what can be read, so that one of them hides no other."""
        from jobs.rows import read_runs

        whole: list[str] = []
        hurt: list[str] = []
        for replica, entry in self.present:
            changed = (self.input_of[replica], entry.path) in self.changed
            (hurt if changed else whole).append(self._store(replica).uri(entry.path))
        columns = ["*", "_metadata"]
        rows = read_runs(self.spark, whole or hurt, damaged=not whole)
        if whole and hurt:
            return rows.select(*columns).unionByName(read_runs(self.spark, hurt, damaged=True).select(*columns))
        return rows

    def _listed(self) -> DataFrame:
        from jobs.rows import literal_frame

        return literal_frame(
            self.spark,
            [
                {"file": self._store(r).spark_name(f.path), "replica": r, "written_ms": f.written_ms}
                for r, f in self.present
            ],
            "file string, replica int, written_ms bigint",
        )

    def _measure(self) -> None:
        from jobs.facts import measure

        found = measure(self._rows(), self._listed().drop("replica"), with_hash=False) if self.present else {}
        for replica in self.replicas:
            store = self._store(replica.number)
            by_path: dict[str, Measured] = {}
            present = {f.path for r, f in self.present if r == replica.number}
            for entry in replica.files:
                if entry.path in present:
                    facts = found.get(unquote(store.spark_name(entry.path)))
                    horizon = replica.manifest.tombstone_horizon_seq.get(str(entry.partition), -1)
                    for finding in content_findings(entry, facts, horizon):
                        self.result.add(finding)
                    if facts is not None:
                        by_path[entry.path] = facts
            self.result.measured.setdefault(self.input_of[replica.number], {}).update(by_path)
            for finding in lineage_findings(replica, by_path):
                self.result.add(finding)

    # -- rows --------------------------------------------------------------------------------------------------------

    def _versions(self) -> DataFrame:
        """All versions of all replicas, the columns that rules need; bad rows prove nothing and are left out."""
        from pyspark.sql import functions as F

        from jobs.rows import crc_matches
        from jobs.store_rules import NEWEST_COLUMNS

        rows = self._rows()
        if "bad_crc" in self.result.counts:
            rows = rows.where(crc_matches())
        if len(self.replicas) == 1:
            return rows.select(*NEWEST_COLUMNS, F.lit(0).alias("replica"))
        value_hash = F.xxhash64("value").alias("value_hash")  # crc also covers seq, which copies stamp differently
        named = rows.select(*NEWEST_COLUMNS, value_hash, F.col("_metadata.file_path").alias("file"))
        return named.join(F.broadcast(self._listed().drop("written_ms")), on="file", how="inner").drop("file")

    def _live_rows(self) -> DataFrame:
        """Rows that are there, and conflicts. One shuffle by partition, which every rule afterwards can live with."""
        from jobs.store_rules import live_rows, newest_versions

        versions = self._versions()
        tasks = TASKS_PER_SHUFFLE * int(str(self.spark.conf.get("spark.sql.shuffle.partitions")))
        newest = versions.repartition(tasks, "partition").transform(newest_versions)
        sessions = sum(f.kinds.get(str(int(RowKind.SESSION)), 0) for r in self.replicas for f in r.files)
        return live_rows(newest, versions, broadcast=sessions <= SESSIONS_BROADCAST_MAX)

    def _check_rows(self, live: DataFrame, kept: DataFrame) -> None:
        from jobs.store_rules import STORE_RULES, conflicting_versions, session_in_wrong_partition, session_seq_gaps

        for replica in self.replicas:
            one = live.where(f"replica = {replica.number}")
            found = {name: one.transform(rule) for name, rule in STORE_RULES.items()}
            found["session_in_wrong_partition"] = one.transform(
                session_in_wrong_partition, replica.manifest.ring.partitions
            )
            if replica.number == 0:
                found["conflicting_versions"] = kept.transform(conflicting_versions)
            self._list(found, replica)
            self._list_gaps(one.transform(session_seq_gaps), replica)
        if len(self.replicas) > 1:
            self._compare_replicas(live)

    def _list(self, found: dict[str, DataFrame], replica: Replica | None) -> None:
        """Turn violations into findings: of each rule the first ones, the number of all in the last. One query."""
        from functools import reduce

        from pyspark.sql import DataFrame
        from pyspark.sql import functions as F

        columns = ["finding", "partition", "key", "seq", "detail"]
        queries = [
            rows.withColumn("finding", F.lit(name)).select(*columns).limit(EXAMPLES_MAX + 1)
            for name, rows in found.items()
        ]
        by_name: dict[str, list[Any]] = defaultdict(list)
        for row in reduce(DataFrame.unionByName, queries).collect():
            by_name[row["finding"]].append(row)
        file = replica.name if replica and len(self.replicas) > 1 else ""
        for name, rows in sorted(by_name.items()):
            total = len(rows) if len(rows) <= EXAMPLES_MAX else found[name].count()
            for number, row in enumerate(sorted(rows)[:EXAMPLES_MAX], start=1):
                more = f"; {total} of these in all" if number == EXAMPLES_MAX else ""
                self.result.add(
                    Finding(name, Severity.ERROR, file, row["partition"], row["key"], row["seq"], row["detail"] + more),
                    1 if number < EXAMPLES_MAX else total - EXAMPLES_MAX + 1,
                )

    def _list_gaps(self, gaps: DataFrame, replica: Replica) -> None:
        """Entries that compactions removed because they had expired leave gaps, so many per partition."""
        from pyspark.sql import functions as F

        totals = gaps.groupBy("partition").agg(F.sum("missing").alias("missing")).collect()
        removed: dict[int, int] = defaultdict(int)
        for entry in replica.files:
            removed[entry.partition] += entry.expired_removed
        lost = [row["partition"] for row in totals if row["missing"] > removed[row["partition"]]]
        if lost:
            short = gaps.where(F.col("partition").isin(*lost)).drop("missing")
            self._list({"session_seq_gap": short}, replica)

    def _compare_replicas(self, live: DataFrame) -> None:
        from jobs.replica_rules import replica_differs
        from jobs.rows import literal_frame

        by_op_index: dict[int, dict[int, list[Replica]]] = defaultdict(lambda: defaultdict(list))
        for replica in self.replicas:
            for partition in sorted({f.partition for f in replica.files}):
                by_op_index[partition][replica.op_index(partition)].append(replica)
        pairs = []
        for partition, groups in by_op_index.items():
            ahead = max(groups)
            for op_index, members in groups.items():
                if op_index < ahead:
                    for replica in members:
                        detail = f"op_index {op_index}, another replica has {ahead}"
                        self.result.add(
                            Finding("replica_behind", Severity.WARNING, replica.name, partition, detail=detail)
                        )
                if len(members) > 1:
                    pairs += [
                        {"replica": r.number, "partition": partition, "group": op_index, "members": len(members)}
                        for r in members
                    ]
        if pairs:
            frame = literal_frame(self.spark, pairs, "replica int, partition int, group bigint, members int")
            self._list({"replica_differs": live.transform(replica_differs, frame)}, None)

    # -- ledgers -----------------------------------------------------------------------------------------------------

    def _ledger_files(self) -> list[tuple[str, int]]:
        """Return (URI, bytes) of the ledger files of all directories and of their folders, one per node."""
        found = []
        for ledger in self.ledgers:
            files = open_directory(self.spark, ledger)
            for name in files.names():
                inner = [name] if "." in name else [f"{name}/{inner}" for inner in files.names(name)]
                found += [(files.uri(path), files.size(path)) for path in inner if path.endswith(LEDGER_SUFFIXES)]
        return found

    def _prove(self, live: DataFrame) -> None:

        from jobs.proof import account, read_ledgers, summarize
        from jobs.rows import literal_frame

        uris = [uri for uri, _ in self._ledger_files()]
        if not uris:
            self.result.add(Finding("ledger_missing", Severity.WARNING, detail="no ledger file in the directories"))
            return
        records = read_ledgers(self.spark, uris).cache()
        self._check_ledgers(records)
        exported: dict[int, int] = {}
        for replica in self.replicas:
            for partition, op_index in replica.manifest.op_index.items():
                exported[int(partition)] = max(exported.get(int(partition), -1), op_index)
        frame = literal_frame(
            self.spark, [{"p": p, "exported": n} for p, n in exported.items()], "p int, exported bigint"
        )
        accounted = account(records.where("e IS NOT NULL"), live.transform(self._newest_copies), frame).cache()
        self.result.proof = summarize(accounted)
        if self.result.proof.lost or self.result.proof.duplicated:
            self._list_debts(accounted)
        accounted.unpersist()
        records.unpersist()

    def _newest_copies(self, live: DataFrame) -> DataFrame:
        """Keep the rows of one replica of each partition: the first one with the highest op_index."""
        from pyspark.sql import functions as F

        from jobs.rows import literal_frame

        if len(self.replicas) == 1:
            return live
        newest: dict[int, Replica] = {}
        for replica in self.replicas:
            for partition in {f.partition for f in replica.files}:
                known = newest.get(partition)
                if known is None or replica.op_index(partition) > known.op_index(partition):
                    newest[partition] = replica
        rows = [{"partition": partition, "replica": replica.number} for partition, replica in newest.items()]
        pairs = literal_frame(self.spark, rows, "partition int, replica int")
        return live.join(F.broadcast(pairs), on=["partition", "replica"], how="left_semi")

    def _list_debts(self, accounted: DataFrame) -> None:
        """Name the messages that were lost or came twice."""
        from pyspark.sql import functions as F

        who = F.concat(F.lit("origin "), "o", F.lit(" session "), F.col("s").cast("string"))
        listed = accounted.select(
            F.col("p").alias("partition"), F.lit("").alias("key"), F.lit(-1).alias("seq"), who.alias("detail"),
            "state", "duplicated",
        )  # fmt: skip
        self._list(
            {"lost_message": listed.where("state = 'LOST'"), "duplicate_delivery": listed.where("duplicated")}, None
        )

    def _check_ledgers(self, records: DataFrame) -> None:
        """A ledger that stopped proves nothing afterwards; one that holds broken lines may have lost records."""
        from pyspark.sql import functions as F

        by_folder = records.groupBy("folder").agg(
            F.count_if(F.col("broken").isNotNull()).alias("broken"),
            F.max(F.when((F.col("e") == "stopped") & F.col("r").startswith("full"), F.col("r"))).alias("stopped"),
            F.max(F.when(F.col("e") == "started", F.col("r"))).alias("tier"),
        )
        tiers = set()
        for row in by_folder.collect():
            tiers.add(row["tier"])
            if row["stopped"] is not None:
                self.result.add(Finding("ledger_stopped", Severity.WARNING, row["folder"], detail=row["stopped"]))
            if row["broken"]:
                detail = f"{row['broken']} lines are no records"
                self.result.add(Finding("ledger_damaged", Severity.WARNING, row["folder"], detail=detail))
        for tier in sorted({"edge", "storage"} - tiers):
            self.result.add(Finding("ledger_missing", Severity.WARNING, detail=f"no ledger of the {tier} tier"))


def parser() -> argparse.ArgumentParser:
    """Return the command line, the same for ``stratamq jobs audit`` and spark-submit."""
    words = JobParser(prog="stratamq jobs audit", description="Audit exported SSTables and ack ledgers.")
    words.add_argument("--input", required=True, action="append", help="directory or URI; repeat for replicas")
    words.add_argument("--ledger", action="append", default=[], help="directory of ledgers; may be repeated")
    words.add_argument("--output", help="directory or URI for findings, summary and page; must not exist")
    spark_options(words)
    return words


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    reason = page_unavailable_reason() if arguments.output else ""
    if reason:  # before minutes of work
        return could_not_run("audit", SparkUnavailable(reason))
    try:
        rows = local_rows(arguments.input)
        spark = open_session(
            "stratamq-audit", small=rows is not None and rows <= SMALL_ROWS, quiet=not arguments.spark_logs
        )
        result = run_audit(arguments.input, arguments.ledger, spark=spark, tables=bool(arguments.output))
        if arguments.output:
            from jobs.report import write_report

            write_report(spark, result, arguments.output)
    except (SparkUnavailable, OSError) as error:
        return could_not_run("audit", error)
    for name, count in sorted(result.counts.items()):
        print(f"{name}: {count}")
    if result.proof is not None:
        from jobs.proof import NOT_PROVEN

        print(" ".join(f"{name} {count}" for name, count in result.proof.as_row().items()))
        print(f"of ACKED, {result.proof.shared} were taken for shared groups")
        for words in NOT_PROVEN:
            print(f"not proven: {words}")
    print("clean" if result.exit_code == ExitCode.CLEAN else f"{sum(result.counts.values())} findings")
    return result.exit_code


if __name__ == "__main__":
    code = main()
    close_session()
    sys.exit(code)
