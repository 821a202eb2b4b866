"""The audit's page: values are escaped, no external resources, and every plot has a bar per row."""

import importlib.util
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from jobs import audit
from jobs.findings import JobExitCode
from jobs.report_page import page, page_unavailable_reason

pytestmark = pytest.mark.skipif(bool(page_unavailable_reason()), reason="jinja2 is missing: make setup-dev")

HOSTILE = "<script>alert('1')</script> & \"x\""


def summary(**changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "exit_code": 1,
        "counts": {"missing_file": 1200, "false_claim": 3},
        "proof": {"ACKED": 1_234_567, "LOST": 2, "DUPLICATED": 0},
        "proof_shared": 3,
        "not_proven": ["what expired", HOSTILE],
        "inputs": [{"input": HOSTILE, "manifest_no": 3, "created_ms": 1_700_000_000_123, "rows": 10, "bytes": 3 << 20,
                    "files": 7}],
        "cluster_id": "plant",
        "job": {"kind": "compact", "removed": {"expired": 5, "deleted": 12_345}, "held": {}},
        "partitions": [
            {"partition": number, "generations": 1, "rows": 1, "bytes": 10 * number, "garbage": 0, "bytes_before": 5}
            for number in range(50)
        ],
        "tables": {
            "session_expiries": [{"hours": hours, "sessions": 1} for hours in (-2, -1, 0, 24, 96)],
            "queue_depths": [{"up_to": up_to, "sessions": 2} for up_to in (-1, 0, 1000)],
            "kinds": [{"kind": 1, "rows": 4}, {"kind": 99, "rows": 5}],
            "longest_queues": [{"client_id": HOSTILE, "partition": 3, "depth": 12_345},
                               {"client_id": "empty", "partition": 3, "depth": 0}],
        },
    }  # fmt: skip
    return facts | changes


def finding(severity: str, number: int) -> dict[str, Any]:
    return {"finding": "missing_file", "severity": severity, "file": HOSTILE, "partition": number, "key": "00ff",
            "seq": number, "detail": HOSTILE}  # fmt: skip


class Elements(HTMLParser):
    """Start tags of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, css: str = "") -> list[dict[str, str | None]]:
        return [found for name, found in self.tags if name == tag and css in (found.get("class") or "")]


def test_values_are_escaped_and_nothing_is_loaded() -> None:
    """Client identifiers and topics never become elements of the page."""
    made = page(summary(), [finding("error", -1), finding("warning", 4)])
    elements = Elements(made)
    assert not elements.all("script") and not elements.all("link") and not elements.all("img")
    assert elements.text.count(HOSTILE) == 7  # input, not proven, a queue, two of each finding
    assert not re.search(r"https?:|url\(|@import", made)


def test_page_content() -> None:
    """Bars by value, notes, thousands separators, and empty cells without a value."""
    elements = Elements(page(summary(), [finding("error", -1), finding("warning", 4)]))
    words = " ".join(elements.text.split())
    for expected in (
        "Audit of plant: 1 203 findings",
        "manifest 3 of 2023-11-14 22:13:20 UTC, 10 rows, 3.0 MiB, 7 files",
        "The last compaction removed 5 expired, 12 345 deleted.",
        "1 234 567ACKED",
        "the largest 40 of 50",
        "within 24 h",
        "within 4 days",
        "connected, or never",
        "up to 1 000",
        "kind 99",
    ):
        assert expected in words, expected
    assert "empty" not in words.split("Longest queues")[1].split()
    assert len(elements.all("rect", "red")) == 2
    assert len(elements.all("rect", "now")) == 40 + 40 + 5 + 3 + 2
    assert max(float(bar["width"] or 0) for bar in elements.all("rect", "red")) == 380
    assert len(elements.all("p", "good")) == 1  # no garbage
    assert [cell.get("class") for cell in elements.all("td") if cell.get("class") in ("bad", "warn")] == ["bad", "warn"]


def test_clean_audit_without_ledgers_omits_empty_sections() -> None:
    clean = summary(exit_code=0, counts={}, proof=None, tables={}, job={"kind": "", "removed": {}, "held": {}})
    elements = Elements(page(clean, []))
    assert "no finding" in elements.text and "nothing is proven" in elements.text
    assert "Findings" not in elements.text and "Longest queues" not in elements.text


def test_rows_beyond_the_limit_are_counted() -> None:
    """The table has all; the page states the number of omitted ones."""
    elements = Elements(page(summary(), [finding("error", 1)] * 503))
    assert len(elements.all("td", "key")) == 500 and "3 more in the table" in elements.text


def test_missing_library_is_reported_before_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    words = ["--input", str(tmp_path), "--output", str(tmp_path / "out")]
    assert audit.main(words) == JobExitCode.COULD_NOT_RUN
    assert "pip install 'stratamq[jobs]'" in capsys.readouterr().err
