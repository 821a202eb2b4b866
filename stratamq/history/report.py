"""A verdict as text, and as plain data for JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from stratamq.history.operations import HistoryRecord
from stratamq.history.verdict import HistoryVerdict, Report, Violation

__all__ = ["as_text", "to_builtins"]

HIDDEN = frozenset({"time_ns", "phase", "kind", "line"})


def as_text(verdict: HistoryVerdict, findings_max: int) -> str:
    """Return a text: one line per checker, then the first findings of each with their proof."""
    header = verdict.header
    lines = [f"{header.workload}, seed {header.seed}, {', '.join(header.broker)}: {verdict.records} records"]
    for report in verdict.reports.values():
        result = f"{report.found} findings" if report.found else "ok"
        lines.append(f"  {report.checker:<20} {report.promise:<8} {report.checked:>8} checked  {result}")
        lines.extend(f"      {note}" for note in report.notes)
    for report in verdict.reports.values():
        for finding in report.findings[:findings_max]:
            lines.append(f"{finding.promise} {finding.checker}: {finding.message}")
            lines.extend(f"    {_describe(record)}" for record in finding.proof)
        if report.found > findings_max:
            lines.append(f"    ... and {report.found - min(findings_max, len(report.findings))} more")
    if not verdict.complete:
        lines.append("INCOMPLETE: the run did not complete its quiet phase; loss was not checked")
    lines.append("clean" if verdict.clean else "NOT CLEAN")
    return "\n".join(lines)


def to_builtins(verdict: HistoryVerdict) -> dict[str, Any]:
    """Return the verdict as JSON types."""
    return {
        "clean": verdict.clean,
        "complete": verdict.complete,
        "header": msgspec.to_builtins(verdict.header),
        "records": verdict.records,
        "checkers": {name: _report(report) for name, report in verdict.reports.items()},
    }


def _report(report: Report) -> dict[str, Any]:
    return {
        "promise": report.promise,
        "checked": report.checked,
        "found": report.found,
        "notes": report.notes,
        "findings": [_finding(finding) for finding in report.findings],
    }


def _finding(finding: Violation) -> dict[str, Any]:
    return {"message": finding.message, "proof": [msgspec.to_builtins(record) for record in finding.proof]}


def _describe(record: HistoryRecord) -> str:
    fields = msgspec.to_builtins(record)
    told = " ".join(f"{name}={value}" for name, value in fields.items() if name not in HIDDEN)
    return f"line {record.line}, {record.time_ns / 1e9:.6f} s: {record.kind} {record.phase} {told}"
