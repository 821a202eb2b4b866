"""Findings of the checkers with the proving records, and the number of checked items.

A report without findings is only meaningful with the number of its checks, so that number is printed with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stratamq.history.history import ClientOperation
from stratamq.history.operations import Header, HistoryRecord

FINDINGS_MAX = 200  # stored per checker; further ones are only counted, because one dead node can lose every message

__all__ = ["HistoryVerdict", "Report", "Violation"]


@dataclass(frozen=True, slots=True)
class Violation:
    """One violated guarantee, with the history lines that prove it."""

    checker: str
    promise: str
    message: str
    proof: tuple[HistoryRecord, ...]


@dataclass(slots=True)
class Report:
    """Findings of one checker.

    Attributes:
        promise: The checked guarantee, such as "R1".
        checked: Number of items (messages, connects, reads) that could have been a finding.
        found: Number of findings; at most FINDINGS_MAX of them are stored.
        notes: Undecided checks with the reason; measurements.
    """

    checker: str
    promise: str
    checked: int = 0
    found: int = 0
    findings: list[Violation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, message: str, *proof: HistoryRecord | ClientOperation) -> None:
        """Count a finding, and store the first ones with their proof."""
        self.found += 1
        if len(self.findings) < FINDINGS_MAX:
            records = [r for item in proof for r in (item.proof if isinstance(item, ClientOperation) else [item])]
            self.findings.append(Violation(self.checker, self.promise, message, tuple(records)))


@dataclass(slots=True)
class HistoryVerdict:
    """All reports on one history.

    Attributes:
        complete: The run completed its quiet phase; otherwise loss cannot be checked.
    """

    header: Header
    records: int
    reports: dict[str, Report]
    complete: bool

    @property
    def clean(self) -> bool:
        """Return whether a complete run has no findings."""
        return self.complete and not any(report.found for report in self.reports.values())

    @property
    def findings(self) -> list[Violation]:
        """Findings of all checkers, in the order in which they ran."""
        return [finding for report in self.reports.values() for finding in report.findings]
