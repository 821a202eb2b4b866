"""Both engines of the jobs: the same rows, manifests, findings, proof and report for the same input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobs import audit
from jobs.audit import run_audit
from jobs.audit_engine import EXAMPLES_MAX
from jobs.compaction import CompactResult, run_compact
from jobs.engine import LOCAL_ROWS_MAX, JobEngine, choose_engine
from jobs.findings import AuditFinding, JobExitCode
from jobs.removed_entries import RemovedEntries, merge_ranges
from jobs.selection import CompactionPolicy
from tests.jobs.damage import damaged_store
from tests.jobs.generator import NOW_MS, generate
from wire.sstable.manifest import read_manifest
from wire.sstable.run_reader import iter_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jobs.audit_result import AuditResult

ROOT = Path(__file__).parent.parent.parent


def _compacted(source: Path, output: Path, engine: JobEngine, spark: SparkSession | None) -> CompactResult:
    policy = CompactionPolicy(everything=True)
    return run_compact(str(source), str(output), NOW_MS, policy=policy, run_id="r", spark=spark, engine=engine)


def _rows(folder: Path) -> dict[int, list[tuple[Any, ...]]]:
    manifest = read_manifest(folder)
    return {
        number: [row for entry in manifest.files_of(number) for row in iter_rows(folder / entry.path)]
        for number in manifest.partitions
    }


def _listed(result: AuditResult) -> list[AuditFinding]:
    """Return the findings of rules that are listed in full: beyond the limit, Spark lists an arbitrary hundred."""
    return [finding for finding in result.findings if result.counts[finding.finding] <= EXAMPLES_MAX]


def _tables(result: AuditResult) -> dict[str, set[tuple[tuple[str, Any], ...]]]:
    return {name: {tuple(sorted(row.items())) for row in rows} for name, rows in result.tables.items()}


@pytest.mark.parametrize("seed", [11, 12])
def test_engines_agree_on_a_sound_store(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """With ended sessions, expired entries, shared groups, and ledgers."""
    generate(tmp_path / "in", seed, generations=3, operations=150, partitions=3, ledgers=tmp_path / "ledgers")
    results = {}
    for engine in (JobEngine.LOCAL, JobEngine.SPARK):
        session = spark if engine is JobEngine.SPARK else None
        out = tmp_path / engine
        done = _compacted(tmp_path / "in", out, engine, session)
        audits = [
            run_audit([str(folder)], [str(tmp_path / "ledgers")], spark=session, tables=True, engine=engine)
            for folder in (tmp_path / "in", out)
        ]
        counts = (done.rows_in, done.rows_out, done.removed, done.partitions, done.held)
        expired = [(entry.expired_removed, entry.expired_entries) for entry in read_manifest(out).files]
        results[engine] = counts, expired, _rows(out), [(a.counts, _listed(a), a.proof, _tables(a)) for a in audits]
    assert results[JobEngine.LOCAL] == results[JobEngine.SPARK]


@pytest.mark.parametrize("seed", [11, 14])
def test_proof_distinguishes_compacted_expired_entries_from_lost_ones(tmp_path: Path, seed: int) -> None:
    """Also after a second compaction without such entries; entries that vanish before are not expired."""
    generate(tmp_path / "in", seed, generations=3, operations=150, partitions=3, ledgers=tmp_path / "ledgers")
    _compacted(tmp_path / "in", tmp_path / "once", JobEngine.LOCAL, None)
    _compacted(tmp_path / "once", tmp_path / "twice", JobEngine.LOCAL, None)
    ledgers = [str(tmp_path / "ledgers")]
    proofs = {}
    for name in ("in", "once", "twice"):
        proofs[name] = run_audit([str(tmp_path / name)], ledgers, engine=JobEngine.LOCAL).proof
    before, once = proofs["in"], proofs["once"]
    assert before is not None and once is not None and once == proofs["twice"]
    assert (once.acked, once.lost, before.lost) == (before.acked, 0, 0) and once.expired > before.expired


def test_merge_ranges_joins_neighbours_of_one_session() -> None:
    ranges = merge_ranges([(2, 5, 5), (1, 3, 4), (1, 5, 9), (1, 11, 11), (2, 0, 9)])
    assert ranges == [(1, 3, 9), (1, 11, 11), (2, 0, 9)]
    removed = RemovedEntries({7: ranges})
    assert [removed.has(7, 1, seq) for seq in (2, 3, 9, 10, 11)] == [False, True, True, False, True]
    assert not removed.has(8, 1, 3)


def test_engines_agree_on_damaged_stores(spark: SparkSession, tmp_path: Path) -> None:
    """Each engine reads the readable part of changed files, so details may differ, but not the findings' names."""
    damaged_store(tmp_path / "in", 3)
    found = {}
    for engine, session in ((JobEngine.LOCAL, None), (JobEngine.SPARK, spark)):
        findings = run_audit([str(tmp_path / "in")], spark=session, engine=engine).findings
        changed = {f.partition for f in findings if f.finding == "file_changed"}
        exact = {f for f in findings if f.partition not in changed}
        done = _compacted(tmp_path / "in", tmp_path / engine, engine, session)
        merged = {entry.partition: entry.digest for entry in read_manifest(tmp_path / engine).files if entry.level}
        found[engine] = exact, changed, set(done.held), done.partitions, done.rows_in, done.rows_out, merged
    assert found[JobEngine.LOCAL] == found[JobEngine.SPARK]


def test_small_store_needs_no_java(tmp_path: Path) -> None:
    """From the command line: compact, audit with proof and report; the choice of engine is printed."""
    generate(tmp_path / "in", 6, generations=2, operations=80, partitions=2, ledgers=tmp_path / "ledgers")
    environment = {**os.environ, "PATH": str(tmp_path), "JAVA_HOME": ""}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "jobs.cli", *words]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    done = run("compact", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--all")
    assert done.returncode == JobExitCode.CLEAN, done.stderr
    assert "engine local" in done.stderr
    report = tmp_path / "report"
    done = run(
        *("audit", "--input", str(tmp_path / "in"), "--ledger", str(tmp_path / "ledgers"), "--output", str(report))
    )
    assert done.returncode == JobExitCode.CLEAN, done.stdout + done.stderr
    assert json.loads((report / "summary.json").read_text())["proof"]["LOST"] == 0
    assert (report / "report.html").exists() and list((report / "findings").glob("*.parquet"))
    done = run("audit", "--input", str(tmp_path / "in"), "--engine", "spark")
    assert done.returncode == JobExitCode.COULD_NOT_RUN and "Java is not installed" in done.stderr
    shutil.rmtree(tmp_path / "in" / "runs")
    missing = run("audit", "--input", str(tmp_path / "none"))
    assert missing.returncode == JobExitCode.COULD_NOT_RUN and "engine local" in missing.stderr


def test_engine_is_chosen_by_size_and_place_of_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows decide, not files; under spark-submit and for other file systems it is Spark."""
    generate(tmp_path, 7, generations=1, operations=40, partitions=1)
    assert choose_engine(JobEngine.AUTO, [str(tmp_path)]) is JobEngine.LOCAL
    assert choose_engine(JobEngine.AUTO, [str(tmp_path), "hdfs://cluster/store"]) is JobEngine.SPARK
    assert choose_engine(JobEngine.SPARK, [str(tmp_path)]) is JobEngine.SPARK
    with pytest.raises(ValueError, match="folders of this machine"):
        choose_engine(JobEngine.LOCAL, ["s3a://bucket/store"])
    monkeypatch.setattr("jobs.engine.local_rows", lambda _: LOCAL_ROWS_MAX + 1)
    assert choose_engine(JobEngine.AUTO, [str(tmp_path)]) is JobEngine.SPARK
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert choose_engine(JobEngine.AUTO, [str(tmp_path)]) is JobEngine.SPARK
    assert "started by spark-submit" in capsys.readouterr().err
    assert audit.parser().parse_args(["--input", "x"]).engine is JobEngine.AUTO
