"""Reports of audits: those of the job, and invalid files."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from admin import audits
from admin.audits import read_reports

PROOF = {"ACKED": 9, "DELIVERED": 5, "QUEUED": 1, "EXPIRED": 1, "DROPPED": 1, "LOST": 1, "DUPLICATED": 0}


def report(folder: Path, name: str, at_ms: int, **more: Any) -> Path:
    """Write a report like ``jobs/report.py``, with additional keys."""
    (folder / name).mkdir()
    path = folder / name / "summary.json"
    summary = {"exit_code": 0, "counts": {}, "proof": None, "inputs": [{"created_ms": at_ms, "rows": 3}], "tables": {}}
    path.write_text(json.dumps(summary | more))
    return path


def test_read_reports_returns_newest_first(tmp_path: Path) -> None:
    """By the time of the exports; includes the columns of the proof and differing copies."""
    report(tmp_path, "old", 1_000)
    found = {"orphan": 2, "replica_differs": 3}
    report(tmp_path, "new", 2_000, exit_code=1, counts=found, proof=PROOF)
    new, old = read_reports(tmp_path)
    assert (new.report, new.at_ms, new.verdict, new.findings) == ("new", 2_000, "findings", 5)
    assert (new.acked, new.lost, new.duplicated, new.replica_diff, new.found) == (9, 1, 0, 3, found)
    assert (old.verdict, old.findings, old.lost) == ("clean", 0, None)


def test_read_reports_invalid_file_has_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another format, an endless file, another release, a folder or a pipe; an empty folder is skipped."""
    monkeypatch.setattr(audits, "SUMMARY_BYTES_MAX", 1_000)
    report(tmp_path, "a-long", 1, tables={"x": ["y" * 2_000]})
    (tmp_path / "b-letter").mkdir()
    (tmp_path / "b-letter" / "summary.json").write_bytes(b"\xffdear operator")
    report(tmp_path, "c-other", 1, counts=[])
    (tmp_path / "d-folder" / "summary.json").mkdir(parents=True)
    (tmp_path / "e-empty").mkdir()
    (tmp_path / "f-file").write_text("x")
    (tmp_path / "g-pipe").mkdir()
    os.mkfifo(tmp_path / "g-pipe" / "summary.json")
    rows = {row.report: row.verdict for row in read_reports(tmp_path)}
    assert {*rows} == {"a-long", "b-letter", "c-other", "d-folder", "g-pipe"}
    assert all(("\n" not in verdict and "report" in verdict) or "read" in verdict for verdict in rows.values()), rows


def test_read_reports_beyond_bound_reads_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By file time: other files are not opened."""
    monkeypatch.setattr(audits, "REPORTS_MAX", 3)
    for number in range(6):
        os.utime(report(tmp_path, f"r{number}", number), (number, number))
    assert [row.report for row in read_reports(tmp_path)] == ["r5", "r4", "r3"]
