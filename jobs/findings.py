"""Findings of a job, one row each, and the exit codes for scripts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["FINDING_SCHEMA", "AuditFinding", "JobExitCode", "Severity"]


class JobExitCode(IntEnum):
    """Exit codes of the jobs."""

    CLEAN = 0
    FINDINGS = 1
    USAGE = 2
    COULD_NOT_RUN = 4  # no Java, no input, damaged manifest, another job published first


class Severity:
    """Severity of a finding: an error is lost or wrong data, a warning is unexpected data."""

    ERROR = "error"
    WARNING = "warning"


FINDING_SCHEMA = "finding string, severity string, file string, partition int, key string, seq bigint, detail string"


@dataclass(frozen=True, slots=True, order=True)
class AuditFinding:
    """One row of the findings table."""

    finding: str  # a name of the list in docs/jobs.md
    severity: str
    file: str = ""  # relative path, or the manifest or ledger
    partition: int = -1
    key: str = ""  # hex
    seq: int = -1
    detail: str = ""
