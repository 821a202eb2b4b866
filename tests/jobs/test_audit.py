"""The audit: a clean store has no finding, every kind of damage is found, and ledgers are accounted for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from jobs import audit
from jobs.audit import run_audit
from jobs.compaction import CompactionFailed, run_compact
from jobs.findings import JobExitCode
from jobs.proof import read_ledgers
from jobs.selection import CompactionPolicy
from tests.jobs.damage import changed, damaged_store, find, write_run
from tests.jobs.generator import NOW_MS, generate
from wire.sstable.ledger import FileLedger, LedgerOperation, LedgerRecord, origin_mark, picked_origin, topic_hash
from wire.sstable.manifest import FileEntry, Manifest, manifest_name, next_manifest, publish_manifest, read_manifest
from wire.sstable.run_reader import iter_rows
from wire.sstable.schema import COLUMN_INDEX, Row, RowKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _ledger(directory: Path, node: str, tier: str) -> FileLedger:
    return FileLedger(directory / node, node, 2, tier, NOW_MS)


def _acked(ledger: FileLedger, origin: str, qos: int, topic: str, partitions: list[int]) -> None:
    ledger.record(LedgerRecord("acked", NOW_MS, origin, qos, topic_hash(topic), ps=partitions))


def _queued(ledger: FileLedger, origin: str, qos: int, op_index: int, sessions: list[tuple[int, int]]) -> None:
    ledger.record(LedgerRecord("queued", NOW_MS, origin, qos, p=0, d=sessions, op=op_index))


def _gone(ledger: FileLedger, event: str, partition: int, session: int, session_seq: int) -> None:
    ledger.record(LedgerRecord(event, NOW_MS, p=partition, s=session, n=session_seq))


def test_clean_store_has_no_finding_and_all_debts_are_met(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before and after compaction: no finding, no lost message, consistent columns, and exit code 0."""
    store = generate(tmp_path / "in", 1, ledgers=tmp_path / "ledgers")
    words = ["--input", str(tmp_path / "in"), "--ledger", str(tmp_path / "ledgers")]
    assert audit.main([*words, "--output", str(tmp_path / "clean")]) == JobExitCode.CLEAN
    output = capsys.readouterr().out
    assert "LOST 0" in output and "shared groups" in output and output.count("not proven: ") == 5
    summary = json.loads((tmp_path / "clean" / "summary.json").read_text())
    assert (summary["exit_code"], summary["counts"]) == (0, {})
    proof = summary["proof"]
    assert proof["LOST"] == proof["DUPLICATED"] == 0
    assert proof["ACKED"] == sum(proof[name] for name in ("DELIVERED", "QUEUED", "EXPIRED", "DROPPED"))
    assert min(proof["DELIVERED"], proof["QUEUED"], proof["DROPPED"]) > 0
    assert proof["QUEUED"] == sum(len(s.entries) for model in store.models for s in model.sessions)
    run_compact(
        str(tmp_path / "in"), str(tmp_path / "in"), NOW_MS, spark=spark, policy=CompactionPolicy(everything=True)
    )
    after = run_audit([str(tmp_path / "in")], spark=spark)
    assert after.findings == []


def test_every_kind_of_damage_is_found_and_named(spark: SparkSession, tmp_path: Path) -> None:
    """Each kind affects one partition, which has its finding; other partitions have none.

    The findings are read from the command's output: Parquet, a summary, and a self-contained page.
    """
    report, tmp_path = tmp_path / "report", tmp_path / "in"
    done = damaged_store(tmp_path, 3)
    assert len(done) >= 20
    assert audit.main(["--input", str(tmp_path), "--output", str(report)]) == JobExitCode.FINDINGS
    rows = spark.read.parquet(str(report / "findings")).collect()
    assert rows[0].asDict().keys() == {"finding", "severity", "file", "partition", "key", "seq", "detail"}
    found = {(row["partition"], row["finding"]) for row in rows}
    missed = [kind for partition, (kind, finding) in done.items() if (partition, finding) not in found]
    assert missed == []
    assert {partition for partition, _ in found} == set(done)
    summary = json.loads((report / "summary.json").read_text())
    assert summary["exit_code"] == 1 and summary["counts"]["missing_file"] >= 1
    page = (report / "report.html").read_text()
    assert "<svg" in page and "missing_file" in page and "http" not in page.replace("http://www.w3.org", "")


def test_invalid_command_line_has_own_exit_codes(tmp_path: Path) -> None:
    """For wrong usage, and for a job that could not run."""
    assert audit.main([]) == JobExitCode.USAGE
    assert audit.main(["--input", str(tmp_path / "none")]) == JobExitCode.COULD_NOT_RUN


def test_differing_and_lagging_replicas_are_found(spark: SparkSession, tmp_path: Path) -> None:
    """At equal op_index every key must be equal; a lagging replica is named and not compared."""
    generate(tmp_path / "a", 4, generations=2, operations=150, partitions=3)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    draft = next_manifest(read_manifest(tmp_path / "b"))
    entry = draft.files_of(0)[1]
    rows = list(iter_rows(tmp_path / "b" / entry.path))
    lost = rows.pop(find(rows, RowKind.RETAINED, expiry_ms=0))
    draft.files = [f for f in draft.files if f.path != entry.path] + [write_run(tmp_path / "b", entry, rows)]
    behind = draft.files_of(1)[1]
    draft.files.remove(behind)
    draft.op_index["1"] = behind.seq_min - 1
    publish_manifest(tmp_path / "b", draft)
    result = run_audit([str(tmp_path / "a"), str(tmp_path / "b")], spark=spark)
    differing = [f for f in result.findings if f.finding == "replica_differs"]
    assert [(f.partition, f.key) for f in differing] == [(0, lost[COLUMN_INDEX["key"]].hex())]
    assert [f.partition for f in result.findings if f.finding == "replica_behind"] == [1]
    assert {f.partition for f in result.findings} == {0, 1}  # the copies of the third are equal


def _copies(folder: Path, source: Path, partitions: int) -> tuple[Manifest, list[list[Row]]]:
    """Return an empty manifest for several nodes' copies, and the rows of each partition of a generated store."""
    store = generate(source, 8, generations=1, operations=60, partitions=partitions)
    (folder / "runs").mkdir(parents=True)
    draft = Manifest(manifest_no=1, created_ms=NOW_MS, ring=store.manifest.ring)
    rows = [list(iter_rows(source / store.manifest.files_of(number)[0].path)) for number in range(partitions)]
    return draft, [[row for row in each if not row[COLUMN_INDEX["tombstone"]]] for each in rows]


def _add_copy(folder: Path, draft: Manifest, node: str, rows: list[Row], op_index: int, *, full: bool = True) -> None:
    """Export one copy: a full export gives each row its own op_index."""
    number = rows[0][COLUMN_INDEX["partition"]]
    entry = FileEntry(path=f"runs/{node}-{number}.parquet", partition=number, generation=1, node=node, full=True)
    stamped = [changed(row, seq=op_index) for row in rows] if full else rows
    draft.files.append(write_run(folder, entry, stamped))
    draft.op_index[str(number)] = max(draft.op_index.get(str(number), 0), op_index)
    draft.replica_op_index.setdefault(node, {})[str(number)] = op_index


def test_copies_at_lower_op_index_lag_and_do_not_differ(spark: SparkSession, tmp_path: Path) -> None:
    """Three nodes export each partition at random op_indexes."""
    draft, stores = _copies(tmp_path / "all", tmp_path / "one", 8)
    draw, behind = Random(7), set()
    for number, rows in enumerate(stores):
        lags = [draw.choice((0, 0, 1, 2)) for _ in range(3)]
        for node, lag in enumerate(lags):
            copy = list(rows)
            if lag > min(lags):
                behind.add((f"storage-{node}", number))
                copy.pop(find(copy, RowKind.RETAINED, expiry_ms=0))  # an operation that this copy lacks
            _add_copy(tmp_path / "all", draft, f"storage-{node}", copy, 10_000 - lag)
    publish_manifest(tmp_path / "all", draft)
    result = run_audit([str(tmp_path / "all")], spark=spark)
    assert behind and result.names() == {"replica_behind"}
    assert {(f.file.rpartition("#")[2], f.partition) for f in result.findings} == behind
    with pytest.raises(CompactionFailed, match="without --replicas"):
        run_compact(str(tmp_path / "all"), str(tmp_path / "out"), NOW_MS, spark=spark)


def test_value_that_differs_at_one_op_index_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """A full export and an increment give the same row different seqs: only the value counts."""
    draft, (rows,) = _copies(tmp_path / "all", tmp_path / "one", 1)
    _add_copy(tmp_path / "all", draft, "a", rows, 10_000)
    other = find(rows, RowKind.RETAINED, expiry_ms=0)
    key = rows[other][COLUMN_INDEX["key"]]
    rows[other] = changed(rows[other], value=b"another payload")
    _add_copy(tmp_path / "all", draft, "b", rows, 10_000, full=False)
    publish_manifest(tmp_path / "all", draft)
    result = run_audit([str(tmp_path / "all")], spark=spark)
    assert [(f.finding, f.key) for f in result.findings] == [("replica_differs", key.hex())]


def test_proof_reads_each_partition_of_the_newest_copy(spark: SparkSession, tmp_path: Path) -> None:
    """No node has all partitions: with the first one alone, messages of the others would be LOST."""
    store = generate(tmp_path / "one", 6, generations=1, operations=120, partitions=2, ledgers=tmp_path / "ledgers")
    draft = Manifest(manifest_no=1, created_ms=NOW_MS, ring=store.manifest.ring, op_index=dict(store.manifest.op_index))
    for number in range(2):
        entry = store.manifest.files_of(number)[0]
        rows = list(iter_rows(tmp_path / "one" / entry.path))
        node = f"storage-{number}"
        copy = FileEntry(path=f"runs/{node}.parquet", partition=number, generation=1, node=node, full=True)
        (tmp_path / "all" / "runs").mkdir(parents=True, exist_ok=True)
        draft.files.append(write_run(tmp_path / "all", copy, rows))
        draft.replica_op_index[node] = {str(number): store.manifest.op_index[str(number)]}
    publish_manifest(tmp_path / "all", draft)
    result = run_audit([str(tmp_path / "all")], [str(tmp_path / "ledgers")], spark=spark)
    assert result.proof is not None and result.proof.lost == 0 and result.findings == []


def test_damaged_manifest_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """The audit reports it and reads the newest readable one."""
    generate(tmp_path, 5, generations=2, operations=50, partitions=2)
    path = tmp_path / manifest_name(2)
    path.write_bytes(path.read_bytes().replace(b'"rows":', b'"rowz":', 1))
    assert "manifest_damaged" in run_audit([str(tmp_path)], spark=spark).names()


def test_inconsistent_ledgers_are_found(spark: SparkSession, tmp_path: Path) -> None:
    """A message never queued, one queued and lost, one met twice, broken and stopped ledgers: each is named."""
    store = generate(tmp_path / "in", 6, generations=1, operations=120, partitions=2, ledgers=tmp_path / "l")
    session = store.models[0].sessions[0].number
    op_index = store.models[0].op_index
    edge, node = _ledger(tmp_path / "l", "e2", "edge"), _ledger(tmp_path / "l", "s2", "storage")
    _acked(edge, "x/never-arrived", 1, "t", [1])
    _acked(edge, "x/never-queued", 1, f"plant/{session}", [0])
    _queued(node, "x/never-queued", 1, op_index, [])
    _acked(edge, "x/gone", 1, "t", [0])
    _queued(node, "x/gone", 1, op_index, [(session, 77_777)])
    _acked(edge, "x/newer-than-the-export", 1, "t", [0])
    _queued(node, "x/newer-than-the-export", 1, op_index + 9, [(session, 88_888)])
    _acked(edge, "x/twice", 2, "t", [0])
    _queued(node, "x/twice", 2, op_index, [(session, 1_000)])
    _queued(node, "x/twice", 2, op_index - 1, [(session, 1_001)])  # copies of one operation belong to several filters
    _gone(node, "delivered", 0, session, 1_000)
    _gone(node, "delivered", 0, session, 1_001)
    _acked(edge, "x/delivered-twice", 2, "t", [0])
    _queued(node, "x/delivered-twice", 2, op_index, [(session, 1_002)])
    _gone(node, "delivered", 0, session, 1_002)
    _gone(node, "delivered", 0, session, 1_002)
    _acked(edge, "x/dropped", 1, "t", [0])
    node.record(LedgerRecord("dropped", NOW_MS, "x/dropped", p=0, s=session, r="queue full"))
    both = [("x/shared", 2_000), (picked_origin("x/shared", "g/t"), 2_001)]
    _acked(edge, "x/shared", 2, "t", [0])
    for (
        origin,
        entry,
    ) in both:  # a session with the topic and one of its groups gets two messages, neither of them twice
        _queued(node, origin, 2, op_index, [(session, entry)])
        _gone(node, "delivered", 0, session, entry)
    picked = picked_origin("x/shared-and-gone", "g/t")
    _queued(node, picked, 1, op_index, [(session, 66_666)])
    edge.close(NOW_MS)
    node.close(NOW_MS)
    full = FileLedger(tmp_path / "l" / "s3", "s3", 1, "storage", NOW_MS, total_bytes_max=100)
    for n in range(5):
        _gone(full, "expired", 1, session, n)
        full.flush()
    with next((tmp_path / "l" / "s3").iterdir()).open("ab") as file:
        file.write(b'{"e":"queu')
    result = run_audit([str(tmp_path / "in")], [str(tmp_path / "l")], spark=spark)
    details = {(f.finding, f.detail) for f in result.findings}
    assert {
        ("lost_message", "origin x/never-arrived session -1"),
        ("lost_message", f"origin x/never-queued session {session}"),
        ("lost_message", f"origin x/gone session {session}"),
        ("lost_message", f"origin {picked} session {session}"),
        ("duplicate_delivery", f"origin x/twice session {session}"),
        ("duplicate_delivery", f"origin x/delivered-twice session {session}"),
    } == {d for d in details if d[0] in ("lost_message", "duplicate_delivery")}
    assert {"ledger_damaged", "ledger_stopped"} <= result.names()
    assert result.proof is not None
    row = result.proof.as_row()
    assert (row["LOST"], row["DUPLICATED"], result.proof.shared) == (4, 2, 2)
    assert row["ACKED"] == sum(row[name] for name in ("DELIVERED", "QUEUED", "EXPIRED", "DROPPED", "LOST"))


def test_batched_ledger_rows_are_read_as_records(spark: SparkSession, tmp_path: Path) -> None:
    """A line has many; a torn line is damage, and operations unknown to a later epoch do not count."""
    edge, node = _ledger(tmp_path, "e1", "edge"), _ledger(tmp_path, "s1", "storage")
    huge = (1 << 64) - 1
    edge.acks(5, 'e"1', b"[0,10,255,1,3,99,4,7],[1,%d,2,2,4,98]," % huge, 2)
    share = origin_mark(1, "e1", "g/t")
    taken = [(0, 10, 255, "@e1", 1, huge >> 1, 8, 12, 9), (1, huge, 2, share, 2), (1, 0, 3, "", 1, 5, 6)]
    node.operation(LedgerOperation(4, 100, 2, taken, [(11, 1, 3), (12, 9, 9)]))
    node.operation(LedgerOperation(7, 100, 2, taken[:1]))
    node.operation(LedgerOperation(4, 101, 2, taken[:1]))
    node.flush(6)
    node.began(7, 4, 3, 100)
    node.flush(7)
    with next((tmp_path / "s1").iterdir()).open("ab") as file:
        file.write(b'{"e":"operations","t":1,"b":[{"p":4,"op":9,"pe":3,"m":[[0,1,2,"@e1",1,5,6],[0,1')
    records = read_ledgers(spark, [str(path) for path in sorted(tmp_path.glob("*/*.open"))])
    rows = [{k: v for k, v in row.asDict().items() if v not in (None, -1)} for row in records.drop("folder").collect()]
    by_event = {name: [row for row in rows if row.get("e") == name] for name in ("acked", "queued", "delivered")}
    assert by_event["acked"] == [
        {"e": "acked", "o": '0:a:ff@e"1', "q": 1, "t": 3, "h": 99, "ps": [4, 7]},
        {"e": "acked", "o": f"1:{huge:x}:2", "q": 2, "t": 4, "h": 98, "ps": []},
    ]
    node_told = {"t": 6, "op": 100, "pe": 2}
    first = {"e": "queued", "o": "0:a:ff@e1", "q": 1, "d": [[huge >> 1, 8], [12, 9]]} | node_told
    assert by_event["queued"] == [
        first | {"p": 4},
        {"e": "queued", "o": picked_origin(f"1:{huge:x}:2", "g/t"), "q": 2, "d": [], "p": 4} | node_told,
        {"e": "queued", "o": "1:0:3", "q": 1, "d": [[5, 6]], "p": 4} | node_told,
        first | {"p": 7},
    ]
    entries = [(row["p"], row["s"], row["n"]) for row in by_event["delivered"]]
    assert entries == [(4, 11, 1), (4, 11, 2), (4, 11, 3), (4, 12, 9)]
    others = [row["e"] for row in rows if row.get("e") not in by_event and "broken" not in row]
    assert sorted(others) == ["began", "started", "started"]
    assert sum("broken" in row for row in rows) == 1
