"""Audit exported stores: file integrity, consistency of rows, and the account of every acknowledged message.

    stratamq jobs audit --input DIR [--input REPLICA ...] [--ledger DIR ...] [--output DIR]
    spark-submit --master ... --py-files stratamq-jobs.zip jobs/audit.py --input URI ...

Read-only. ``jobs/file_rules.py`` checks files, ``jobs/store_rules.py`` rows, ``jobs/replica_rules.py`` replicas, and
``jobs/proof.py`` computes the proof from ledgers. docs/jobs.md lists the findings.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from conf.urls import mask_urls
from jobs.audit_engine import EXAMPLES_MAX, AuditEngine, LedgerFolder, PresentRows, ProofInput, Violations
from jobs.audit_result import AuditResult
from jobs.engine import LEDGER_RECORD_BYTES, JobEngine, add_engine_option, choose_engine
from jobs.facts import MeasuredFacts
from jobs.file_rules import ReplicaFiles, content_findings, identity_findings, lineage_findings
from jobs.files import FileFacts, FileSystem, local_rows, open_directory
from jobs.findings import AuditFinding, JobExitCode, Severity
from jobs.job_parser import JobParser, spark_options
from jobs.proof_result import NOT_PROVEN
from jobs.removed_entries import Range
from jobs.report_page import page_unavailable_reason
from jobs.spark import (
    SMALL_ROWS,
    SparkUnavailable,
    close_session,
    could_not_run,
    open_session,
    report_stage,
)
from wire.sstable.ledger import LEDGER_SUFFIXES
from wire.sstable.manifest import FileEntry, Manifest, ManifestDamaged, decode_manifest, manifest_name, manifest_numbers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["main", "run_audit"]


def run_audit(
    inputs: Sequence[str],
    ledgers: Sequence[str] = (),
    *,
    spark: SparkSession | None = None,
    tables: bool = False,
    engine: JobEngine = JobEngine.SPARK,
) -> AuditResult:
    """Audit the newest manifest of each input; several inputs, or nodes of one, are replicas of each other.

    Args:
        ledgers: Directories of ledger files, of all edges and all storage nodes; enables the proof.
        spark: Session of the engine SPARK; opened if None.
        tables: Also compute the small tables of the report.
        engine: LOCAL reads folders of this machine only.
    Raises:
        FileNotFoundError: An input has no manifest.
    """
    work: AuditEngine
    if engine is JobEngine.LOCAL:
        from jobs.local_audit import LocalAudit

        work, session = LocalAudit(), None
    else:
        from jobs.spark_audit import SparkAudit

        session = spark or open_session("stratamq-audit")
        work = SparkAudit(session)
    return _Audit(work, session, list(inputs), list(ledgers)).run(tables)


class _Audit:
    """One run; each input is read once."""

    def __init__(self, engine: AuditEngine, spark: SparkSession | None, inputs: list[str], ledgers: list[str]) -> None:
        self.engine = engine
        self.inputs = inputs
        self.ledgers = [open_directory(spark, uri) for uri in ledgers]
        self.result = AuditResult()
        self.stores: dict[str, FileSystem] = {uri: open_directory(spark, uri) for uri in inputs}
        self.ancestors: dict[str, dict[str, FileEntry]] = {}
        self.replicas: list[ReplicaFiles] = []
        self.input_of: dict[int, str] = {}
        self.present: list[PresentRows] = []
        self._started = time.monotonic()

    def run(self, tables: bool) -> AuditResult:
        for uri in self.inputs:
            self._read_manifest(uri)
        records = sum(size for _, size in self._ledger_files()) // LEDGER_RECORD_BYTES
        self.engine.start(sum(f.rows for r in self.replicas for f in r.files) + records, self.replicas, self.stores)
        self._identify()
        self._done("identified", f"{len(self.present)} files identified")
        self._measure()
        self._done("measured", f"{sum(f.rows for r in self.replicas for f in r.files)} rows measured")
        self.engine.read(skip_bad="bad_crc" in self.result.counts)
        try:
            self._check_rows()
            self._done("rows", "rules between rows checked")
            if self.ledgers:
                self._prove()
                self._done("proof", "ledgers accounted for")
            if tables:
                created_ms = self.replicas[0].manifest.created_ms if self.replicas else 0
                self.result.tables = self.engine.tables(self._newest_copies(), created_ms)
                self._done("tables", "report tables collected")
        finally:
            self.engine.close()
        self.result.findings.sort()
        return self.result

    def _done(self, name: str, text: str) -> None:
        now = time.monotonic()
        self.result.seconds[name] = round(now - self._started, 3)
        report_stage(f"{text} ({now - self._started:.1f} s)")
        self._started = now

    # -- files -------------------------------------------------------------------------------------------------------

    def _read_manifest(self, uri: str) -> None:
        """Read the newest manifest; a damaged one is a finding, and the newest readable one is audited instead."""
        store = self.stores[uri]
        manifest: Manifest | None = None
        known: dict[str, FileEntry] = {}
        for number in reversed(manifest_numbers(store.names())):
            try:
                read = decode_manifest(store.read(manifest_name(number)))
            except ManifestDamaged as error:
                self.result.add(
                    AuditFinding("manifest_damaged", Severity.ERROR, manifest_name(number), detail=str(error))
                )
                continue
            manifest = manifest or read
            for entry in read.files:
                known.setdefault(entry.sha256, entry)
        if manifest is None:
            reasons = "; ".join(
                f"{f.file}: {f.detail}" for f in self.result.findings if f.finding == "manifest_damaged"
            )
            raise FileNotFoundError(f"no readable manifest in {mask_urls(uri)}" + (f" ({reasons})" if reasons else ""))
        self.result.manifests[uri] = manifest
        self.ancestors[uri] = known
        by_node: dict[str, list[FileEntry]] = defaultdict(list)
        for entry in manifest.files:
            by_node[entry.node if manifest.replica_op_index else ""].append(entry)
        for node, files in sorted(by_node.items()):
            number, shown = len(self.replicas), mask_urls(uri)
            self.replicas.append(
                ReplicaFiles(number, f"{shown}#{node}" if node else shown, manifest, tuple(files), node)
            )
            self.input_of[number] = uri

    def _identify(self) -> None:
        for replica in self.replicas:
            uri = self.input_of[replica.number]
            facts = self.stores[uri].identify([f.path for f in replica.files])
            for entry in replica.files:
                found: FileFacts | None = facts[entry.path]
                for finding in identity_findings(entry, found, self.ancestors[uri]):
                    self.result.add(finding)
                if found is not None:
                    self.present.append(PresentRows(replica.number, uri, entry, found != (entry.bytes, entry.sha256)))

    def _measure(self) -> None:
        found = self.engine.measure(self.present) if self.present else {}
        present = {(each.replica, each.entry.path) for each in self.present}
        for replica in self.replicas:
            by_path: dict[str, MeasuredFacts] = {}
            for entry in replica.files:
                if (replica.number, entry.path) in present:
                    facts = found.get((replica.number, entry.path))
                    horizon = replica.manifest.tombstone_horizon_seq.get(str(entry.partition), -1)
                    for finding in content_findings(entry, facts, horizon):
                        self.result.add(finding)
                    if facts is not None:
                        by_path[entry.path] = facts
            self.result.measured.setdefault(self.input_of[replica.number], {}).update(by_path)
            for finding in lineage_findings(replica, by_path):
                self.result.add(finding)

    # -- rows --------------------------------------------------------------------------------------------------------

    def _check_rows(self) -> None:
        for replica in self.replicas:
            found, gaps = self.engine.check(replica)
            if replica.number == 0:
                found["conflicting_versions"] = self.engine.conflicts()
            self._list(found, replica)
            self._list_gaps(gaps, replica)
        if len(self.replicas) > 1:
            self._compare_replicas()

    def _list(self, found: Mapping[str, Violations], replica: ReplicaFiles | None) -> None:
        """Turn violations into findings: the first ones of each rule, with the total in the last one."""
        file = replica.name if replica and len(self.replicas) > 1 else ""
        for name, (total, rows) in sorted(found.items()):
            for number, (partition, key, seq, detail) in enumerate(sorted(rows)[:EXAMPLES_MAX], start=1):
                more = f"; {total} of these in all" if number == EXAMPLES_MAX else ""
                self.result.add(
                    AuditFinding(name, Severity.ERROR, file, partition, key, seq, detail + more),
                    1 if number < EXAMPLES_MAX else total - EXAMPLES_MAX + 1,
                )

    def _list_gaps(self, gaps: Mapping[int, list[tuple[int, str, int, str, int]]], replica: ReplicaFiles) -> None:
        """Report missing queue entries, unless compactions removed as many expired entries of the partition."""
        removed: dict[int, int] = defaultdict(int)
        for entry in replica.files:
            removed[entry.partition] += entry.expired_removed
        short = [
            row[:4] for partition, rows in gaps.items() if sum(r[4] for r in rows) > removed[partition] for row in rows
        ]
        self._list({"session_seq_gap": Violations(len(short), short)}, replica)

    def _compare_replicas(self) -> None:
        by_op_index: dict[int, dict[int, list[ReplicaFiles]]] = defaultdict(lambda: defaultdict(list))
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
                            AuditFinding("replica_behind", Severity.WARNING, replica.name, partition, detail=detail)
                        )
                if len(members) > 1:
                    pairs += [(r.number, partition, op_index, len(members)) for r in members]
        if pairs:
            self._list({"replica_differs": self.engine.compare(pairs)}, None)

    def _newest_copies(self) -> dict[int, int]:
        """Return the replica to read each partition from: the first one with the highest op_index."""
        newest: dict[int, ReplicaFiles] = {}
        for replica in self.replicas:
            for partition in {f.partition for f in replica.files}:
                known = newest.get(partition)
                if known is None or replica.op_index(partition) > known.op_index(partition):
                    newest[partition] = replica
        return {partition: replica.number for partition, replica in newest.items()}

    # -- ledgers -----------------------------------------------------------------------------------------------------

    def _ledger_files(self) -> list[tuple[str, int]]:
        """Return (URI, bytes) of the ledger files in all directories and in their folders, one per node."""
        found = []
        for files in self.ledgers:
            for name in files.names():
                inner = [name] if "." in name else [f"{name}/{inner}" for inner in files.names(name)]
                found += [(files.uri(path), files.size(path)) for path in inner if path.endswith(LEDGER_SUFFIXES)]
        return found

    def _prove(self) -> None:
        uris = [uri for uri, _ in self._ledger_files()]
        if not uris:
            self.result.add(
                AuditFinding("ledger_missing", Severity.WARNING, detail="no ledger file in the directories")
            )
            return
        exported: dict[int, int] = {}
        for replica in self.replicas:
            for partition, op_index in replica.manifest.op_index.items():
                exported[int(partition)] = max(exported.get(int(partition), -1), op_index)
        newest = self._newest_copies()
        removed: dict[int, list[Range]] = {}
        for number, position in newest.items():
            of = (entry for entry in self.replicas[position].files if entry.partition == number)
            removed[number] = [each for entry in of for each in entry.expired_entries]
        found = self.engine.prove(ProofInput(uris, exported, newest, removed))
        self._check_ledgers(found.folders)
        self.result.proof = found.proof
        self._list({"lost_message": found.lost, "duplicate_delivery": found.duplicated}, None)

    def _check_ledgers(self, folders: Sequence[LedgerFolder]) -> None:
        """Report ledgers that stopped early, have damaged lines, or are missing for a tier."""
        for folder, _, stopped, broken in folders:
            if stopped is not None:
                self.result.add(AuditFinding("ledger_stopped", Severity.WARNING, folder, detail=stopped))
            if broken:
                detail = f"{broken} lines are no records"
                self.result.add(AuditFinding("ledger_damaged", Severity.WARNING, folder, detail=detail))
        for tier in sorted({"edge", "storage"} - {folder.tier for folder in folders}):
            self.result.add(AuditFinding("ledger_missing", Severity.WARNING, detail=f"no ledger of the {tier} tier"))


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser, the same for ``stratamq jobs audit`` and spark-submit."""
    options = JobParser(prog="stratamq jobs audit", description="Audit exported SSTables and ack ledgers.")
    options.add_argument("--input", required=True, action="append", help="directory or URI; repeat for replicas")
    options.add_argument("--ledger", action="append", default=[], help="directory of ledgers; may be repeated")
    options.add_argument("--output", help="directory or URI for findings, summary and page; must not exist")
    add_engine_option(options)
    spark_options(options)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    reason = page_unavailable_reason() if arguments.output else ""
    if reason:  # before minutes of audit
        return could_not_run("audit", SparkUnavailable(reason))
    try:
        engine = choose_engine(arguments.engine, arguments.input, arguments.ledger)
        spark = None
        if engine is JobEngine.SPARK:
            rows = local_rows(arguments.input)
            small = rows is not None and rows <= SMALL_ROWS
            spark = open_session("stratamq-audit", small=small, quiet=not arguments.spark_logs)
        result = run_audit(arguments.input, arguments.ledger, spark=spark, tables=bool(arguments.output), engine=engine)
        if arguments.output:
            from jobs.report import write_report

            write_report(spark, result, arguments.output)
    except (SparkUnavailable, ValueError, OSError) as error:
        return could_not_run("audit", error)
    for name, count in sorted(result.counts.items()):
        print(f"{name}: {count}")
    if result.proof is not None:
        print(" ".join(f"{name} {count}" for name, count in result.proof.as_row().items()))
        print(f"of ACKED, {result.proof.shared} were taken for shared groups")
        for limit in NOT_PROVEN:
            print(f"not proven: {limit}")
    print("clean" if result.exit_code == JobExitCode.CLEAN else f"{sum(result.counts.values())} findings")
    return result.exit_code


if __name__ == "__main__":
    code = main()
    close_session()
    sys.exit(code)
