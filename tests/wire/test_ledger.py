"""The ack ledger: free of cost when off, without silent loss when on."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from wire.sstable.ledger import FileLedger, LedgerOperation, LedgerQueueFull, LedgerRecord, LedgerSink, topic_hash


def _lines(directory: Path) -> list[dict[str, Any]]:
    lines = []
    for path in sorted(directory.iterdir()):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines += [json.loads(line) for line in data.splitlines()]
    return lines


def test_ledger_default_sink_discards_all_records() -> None:
    """A node without a ledger calls the same methods."""
    sink = LedgerSink()
    sink.record(LedgerRecord("acked", 1, "e1/1/1"))
    sink.operation(LedgerOperation(1, 2, 3, [(0, 1, 2, "", 1)]))
    sink.acks(1, "e1", b"[],", 1)
    sink.flush()
    sink.close(2)


def test_records_survive_rotation_in_order(tmp_path: Path) -> None:
    """Files rotate by size and by age; complete ones are compressed; each record is there once, in order."""
    ledger = FileLedger(tmp_path / "e1", "e1", 7, "edge", 0, rotate_bytes=4_000, rotate_s=10.0)
    for n in range(2_000):
        ledger.record(LedgerRecord("acked", n, f"e1/7/{n}", 1, topic_hash("a/b"), ps=[n % 4, 9]))
        if n % 10 == 0:
            ledger.flush()
    ledger.record(LedgerRecord("acked", 20_000, "e1/7/late", 2))
    ledger.close(20_001)
    lines = _lines(tmp_path / "e1")
    assert [line["o"] for line in lines if line["e"] == "acked"] == [f"e1/7/{n}" for n in range(2_000)] + ["e1/7/late"]
    assert lines[1] == {"e": "acked", "t": 0, "o": "e1/7/0", "q": 1, "h": topic_hash("a/b"), "ps": [0, 9]}
    assert (lines[0]["e"], lines[0]["r"], lines[-1]["e"], lines[-1]["r"]) == ("started", "edge", "stopped", "closed")
    assert len([p for p in (tmp_path / "e1").iterdir() if p.suffix == ".gz"]) > 0


def test_flushed_records_survive_the_process(tmp_path: Path) -> None:
    """Flushed records are in the unclosed file; the next incarnation completes the file."""
    ledger = FileLedger(tmp_path, "s1", 1, "storage", 0)
    ledger.operation(LedgerOperation(3, 11, 4, [(1, 7, 1, "", 2, 4, 9)], [(4, 1, 8)]))
    ledger.flush(5)
    FileLedger(tmp_path, "s1", 2, "storage", 10).close(11)
    lines = _lines(tmp_path)
    operation_row = {"p": 3, "op": 11, "pe": 4, "m": [[1, 7, 1, "", 2, 4, 9]], "d": [[4, 1, 8]]}
    assert {"e": "operations", "t": 5, "b": [operation_row]} in lines
    assert not list(tmp_path.glob("*.open"))


@pytest.mark.parametrize("torn_bytes", [10, 3 << 20])
def test_ledger_cuts_a_torn_last_line(tmp_path: Path, torn_bytes: int) -> None:
    """The incomplete last line of a killed process was never flushed; earlier lines stay."""
    ledger = FileLedger(tmp_path, "e1", 1, "edge", 0)
    ledger.acks(5, "e1", b"[0,7,1,1,4,99,3],[0,7,2,1,4,99,3],", 2)
    with next(tmp_path.iterdir()).open("ab") as file:
        file.write(b'{"e":"acks"' + b"," * torn_bytes)
    FileLedger(tmp_path, "e1", 2, "edge", 10).close(11)
    acks = {"e": "acks", "t": 5, "o": "e1", "k": [[0, 7, 1, 1, 4, 99, 3], [0, 7, 2, 1, 4, 99, 3]]}
    assert [line["e"] for line in _lines(tmp_path)] == ["started", "acks", "started", "stopped"]
    assert acks in _lines(tmp_path)


def test_ledger_stopped_counts_refused_rows(tmp_path: Path) -> None:
    """One line may contain many messages."""
    ledger = FileLedger(tmp_path, "s1", 1, "storage", 0, total_bytes_max=10)
    ledger.operation(LedgerOperation(1, 2, 3, [(0, 1, 2, "", 1)] * 3, [(4, 1, 8)]))
    ledger.acks(1, "e1", b"[],[],", 2)
    assert ledger.unrecorded == 6


@pytest.mark.parametrize("when_full", ["stop", "refuse"])
def test_ledger_full_reports_once(tmp_path: Path, when_full: Any) -> None:
    """It stops permanently: the loss is logged once, recorded, counted, and refused if so configured."""
    errors: list[str] = []
    ledger = FileLedger(tmp_path, "s1", 1, "storage", 0, total_bytes_max=2_000, when_full=when_full, loud=errors.append)
    taken = 0
    try:
        for n in range(500):
            ledger.record(LedgerRecord("delivered", n, p=1, s=2, n=n))
            ledger.flush()
            taken += 1
    except LedgerQueueFull:
        assert when_full == "refuse"
    assert len(errors) == 1 and ledger.unrecorded > 0
    lines = _lines(tmp_path)
    assert lines[-1]["e"] == "stopped" and lines[-1]["r"].startswith("full")
    recorded = sum(line["e"] == "delivered" for line in lines)
    assert recorded == (taken if when_full == "refuse" else 500 - ledger.unrecorded)


def test_topic_hash_is_the_same_everywhere() -> None:
    """Nodes and versions must agree: the expected value is fixed."""
    assert topic_hash("a/b") == topic_hash("a/b") != topic_hash("a/c")
    assert 0 < topic_hash("") < 1 << 63
