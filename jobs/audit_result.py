"""The result of an audit: findings, their counts, and facts of the audited stores for the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jobs.findings import AuditFinding, JobExitCode
from wire.sstable.manifest import Manifest

if TYPE_CHECKING:
    from jobs.facts import MeasuredFacts
    from jobs.proof_result import Proof

__all__ = ["AuditResult"]


@dataclass(slots=True)
class AuditResult:
    """Result of an audit."""

    findings: list[AuditFinding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)  # violations by finding, including unlisted ones
    proof: Proof | None = None
    manifests: dict[str, Manifest] = field(default_factory=dict)  # by input
    measured: dict[str, dict[str, MeasuredFacts]] = field(default_factory=dict)  # input -> path -> facts
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # small tables for the report
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def exit_code(self) -> JobExitCode:
        """Exit code of the audit, by whether there are findings."""
        return JobExitCode.FINDINGS if self.findings else JobExitCode.CLEAN

    def add(self, finding: AuditFinding, violations: int = 1) -> None:
        """Add a finding; ``violations`` includes unlisted ones of the same name."""
        self.findings.append(finding)
        self.counts[finding.finding] = self.counts.get(finding.finding, 0) + violations

    def names(self) -> set[str]:
        """Names of the findings."""
        return set(self.counts)
