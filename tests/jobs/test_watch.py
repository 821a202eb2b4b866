"""The watch: its reports while ledgers grow, and agreement with the audit of the same files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobs import watch
from jobs.findings import JobExitCode
from jobs.proof import account, read_ledgers
from jobs.rows import literal_frame
from jobs.watch import MINUTE_MS, LedgerWatch
from tests.jobs.generator import NOW_MS, generate
from wire.sstable.ledger import FileLedger, LedgerRecord, topic_hash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _acked(ledger: FileLedger, origin: str, minute: float, topic: str = "t", partition: int = 0) -> None:
    t = NOW_MS + int(minute * MINUTE_MS)
    ledger.record(LedgerRecord("acked", t, origin, 1, topic_hash(topic), ps=[partition]))


def _queued(ledger: FileLedger, origin: str, minute: float, session: int = 7) -> None:
    t = NOW_MS + int(minute * MINUTE_MS)
    ledger.record(LedgerRecord("queued", t, origin, 1, p=0, d=[(session, int(minute * 10) + 1)], op=1))


def _ledger(folder: Path, node: str, tier: str, incarnation: int) -> FileLedger:
    return FileLedger(folder / node, node, incarnation, tier, NOW_MS)


def _reported(state: Path) -> list[tuple[str, str]]:
    """Return the reported (state, origin) pairs in order."""
    rows: list[dict[str, Any]] = []
    for file in sorted((state / "reports").glob("*.jsonl")):
        rows += map(json.loads, file.read_text().splitlines())
    return [(row["state"], row["o"]) for row in rows]


def _debts(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the audit's debts for all finished files without a store."""
    files = [str(path) for path in sorted(folder.rglob("*.jsonl*")) if not path.name.endswith(".open")]
    return account(read_ledgers(spark, files), None, literal_frame(spark, [], "p int, exported bigint"))


def _lost(spark: SparkSession, folder: Path) -> set[str]:
    return {row["o"] for row in _debts(spark, folder).where("state = 'LOST'").select("o").collect()}


def test_unaccounted_message_is_reported_after_the_delay(spark: SparkSession, tmp_path: Path) -> None:
    """And again when a later file accounts for it; messages refused with a reason, or queued, never."""
    folder, state = tmp_path / "l", tmp_path / "state"

    def run_watch() -> int:
        return LedgerWatch(spark, [str(folder)], state, within_minutes=5, late_minutes=5).run(once=True)

    edge, node = _ledger(folder, "e1", "edge", 1), _ledger(folder, "s1", "storage", 1)
    node.record(LedgerRecord("subscribed", NOW_MS - MINUTE_MS, p=0, s=7, h=topic_hash("plant")))
    for origin in ("0:1:1@e1", "0:1:2@e1", "0:1:3@e1", "0:1:4@e1"):
        _acked(edge, origin, 0)
    _acked(edge, "0:1:5@e1", 0, "plant")
    _queued(node, "0:1:1@e1", 0)
    node.record(LedgerRecord("dropped", NOW_MS, "0:1:2@e1", p=0, s=7, r="queue_full"))
    _queued(node, "0:1:5@e1", 0, session=8)  # another session of its partition has it, not the subscribed one
    _acked(edge, "0:1:6@e1", 4)
    _acked(edge, "0:1:7@e1", 11)
    node.close(NOW_MS)
    open_one = _ledger(folder, "s1", "storage", 2)
    _queued(open_one, "0:1:3@e1", 0)  # its file is not finished, so the watch has no record of it
    open_one.flush()
    edge.close(NOW_MS)
    assert run_watch() == 3
    assert sorted(_reported(state)) == [("LOST", "0:1:3@e1"), ("LOST", "0:1:4@e1"), ("LOST", "0:1:5@e1")]
    open_one.close(NOW_MS)
    edge = _ledger(folder, "e1", "edge", 3)
    _acked(edge, "0:1:8@e1", 30)
    edge.close(NOW_MS)
    assert run_watch() == 4
    assert sorted(_reported(state)[3:]) == [("LOST", "0:1:6@e1"), ("LOST", "0:1:7@e1"), ("SETTLED", "0:1:3@e1")]
    assert _lost(spark, folder) == {"0:1:4@e1", "0:1:5@e1", "0:1:6@e1", "0:1:7@e1", "0:1:8@e1"}  # the last is too new
    edge = _ledger(folder, "e1", "edge", 4)
    _acked(edge, "0:1:9@e1", 60 * 25)
    edge.close(NOW_MS)
    assert run_watch() == 1
    assert sorted(state for state, _ in _reported(state)[6:]) == ["FORGOTTEN"] * 4 + ["LOST"]


@pytest.mark.slow
def test_watch_agrees_with_the_audit_row_for_row(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any split of files into batches, with missing and void records."""
    generate(tmp_path / "in", 11, generations=2, operations=80, partitions=2, ledgers=tmp_path / "l")
    edge, node = _ledger(tmp_path / "l", "e2", "edge", 2), _ledger(tmp_path / "l", "s2", "storage", 2)
    for number in range(4):
        _acked(edge, f"x/{number}", 0)
    _queued(node, "x/0", 0)
    node.record(LedgerRecord("queued", NOW_MS, "x/1", 1, p=0, d=[(7, 900)], op=50, pe=1))  # void: see the next line
    node.record(LedgerRecord("began", NOW_MS, p=0, op=40, pe=2))
    edge.close(NOW_MS)
    node.close(NOW_MS)
    files = sorted(path for path in (tmp_path / "l").rglob("*.jsonl*") if path.is_file())
    files[len(files) // 3].unlink()  # its records are missing
    rows = _debts(spark, tmp_path / "l").where("state = 'LOST'").select("p", "o", "s", "q").collect()
    later = _ledger(tmp_path / "l", "e2", "edge", 3)
    later.record(LedgerRecord("acked", NOW_MS + 500 * MINUTE_MS, "x/later", 1, 1))  # so all others are due
    later.close(NOW_MS)
    monkeypatch.setattr(watch, "FILES_PER_BATCH", len(files) // 2)
    live = LedgerWatch(spark, [str(tmp_path / "l")], tmp_path / "state", within_minutes=1, late_minutes=200)
    assert live.run(once=True) == len(rows) > 3
    kept = sorted((tmp_path / "state" / "kept").iterdir())
    assert 1 < len(kept) <= 3, "the state is of the last batches"
    reported = spark.read.parquet(str(kept[-1] / "reported")).select("p", "o", "s", "q").collect()
    assert set(map(tuple, reported)) == set(map(tuple, rows))


@pytest.mark.slow
def test_repeated_batch_has_the_same_result(spark: SparkSession, tmp_path: Path) -> None:
    """Interrupted after its report: no second report, and no lost state."""
    folder, state = tmp_path / "l", tmp_path / "state"
    edge = _ledger(folder, "e1", "edge", 1)
    _acked(edge, "0:1:1@e1", 0)
    _acked(edge, "0:1:2@e1", 60)
    edge.close(NOW_MS)
    arguments = (spark, [str(folder)], state, 5, 5)
    assert LedgerWatch(*arguments).run(once=True) == 1
    shutil.rmtree(state / "checkpoint" / "commits")
    assert LedgerWatch(*arguments).run(once=True) == 1
    assert _reported(state) == [("LOST", "0:1:1@e1")]


def test_command_line_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = str(tmp_path)
    assert watch.main([]) == JobExitCode.USAGE
    assert watch.main(["--ledger", ledger, "--state", str(tmp_path / "s"), "--within", "-1"]) == JobExitCode.USAGE
    assert watch.main(["--ledger", str(tmp_path / "none"), "--state", str(tmp_path / "s")]) == JobExitCode.COULD_NOT_RUN
    assert "no such directory" in capsys.readouterr().err
