"""Findings of the checkers with the records that prove them, and how much was looked at.

A report without findings is only as good as the number of things it checked, so that number stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stratamq.history.history import ClientOperation
from stratamq.history.operations import Header, HistoryRecord

FINDINGS_MAX = 200  # kept per checker; the rest is only counted: one dead node can lose every message

__all__ = ["HistoryVerdict", "Report", "Violation"]


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise, with the lines of the history that prove it."""

    checker: str
    promise: str
    message: str
    proof: tuple[HistoryRecord, ...]


@dataclass(slots=True)
class Report:
    """Findings of one checker.

    Attributes:
        promise: The promise that it checks, such as "R1".
        checked: How many things (messages, connects, reads) could have been a finding.
        found: All findings; at most FINDINGS_MAX of them are kept.
        notes: What could not be decided, and why; measured figures.
    """

    checker: str
    promise: str
    checked: int = 0
    found: int = 0
    findings: list[Violation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, message: str, *proof: HistoryRecord | ClientOperation) -> None:
        """Count a finding, and keep the first ones with the records that prove it."""
        self.found += 1
        if len(self.findings) < FINDINGS_MAX:
            records = [r for item in proof for r in (item.proof if isinstance(item, ClientOperation) else [item])]
            self.findings.append(Violation(self.checker, self.promise, message, tuple(records)))


@dataclass(slots=True)
class HistoryVerdict:
    """All reports on one history.

    Attributes:
        complete: The run went through its quiet phase. Of one that did not, nothing can be said about loss.
    """

    header: Header
    records: int
    reports: dict[str, Report]
    complete: bool

    @property
    def clean(self) -> bool:
        """Whether nothing was found in a run that was long enough to find it."""
        return self.complete and not any(report.found for report in self.reports.values())

    @property
    def findings(self) -> list[Violation]:
        """Findings of all checkers, in the order in which they ran."""
        return [finding for report in self.reports.values() for finding in report.findings]
