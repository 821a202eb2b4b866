"""The interface between an audit and its engine, which processes the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from jobs.facts import MeasuredFacts
from jobs.file_rules import ReplicaFiles
from jobs.files import FileSystem
from jobs.proof_result import Proof
from jobs.removed_entries import Range
from wire.sstable.manifest import FileEntry

__all__ = [
    "EXAMPLES_MAX",
    "AuditEngine",
    "LedgerFolder",
    "PresentRows",
    "ProofInput",
    "ProofResult",
    "Violations",
]

EXAMPLES_MAX = 100  # findings listed per rule and replica; the total is in the detail of the last one


class Violations(NamedTuple):
    """Rows that break one rule: their number, and the first ones as (partition, key in hex, seq, detail)."""

    total: int
    examples: list[tuple[int, str, int, str]]


class LedgerFolder(NamedTuple):
    """Ledger files of one node."""

    folder: str
    tier: str | None  # from its first record, None without one
    stopped: str | None  # why it ended early
    broken: int  # lines that are not valid records


class PresentRows(NamedTuple):
    """A listed file that exists."""

    replica: int
    uri: str  # of its input
    entry: FileEntry
    changed: bool  # its bytes differ from the manifest


class ProofInput(NamedTuple):
    """Input of the proof."""

    ledgers: list[str]  # URIs of files
    exported: dict[int, int]  # partition -> op_index
    newest: dict[int, int]  # partition -> replica with the highest op_index
    removed: dict[int, list[Range]]  # partition -> expired entries that compactions of that replica removed


class ProofResult(NamedTuple):
    """Result of the proof."""

    proof: Proof
    folders: list[LedgerFolder]
    lost: Violations
    duplicated: Violations


class AuditEngine(Protocol):
    """Row processing: ``jobs/spark_audit.py`` and ``jobs/local_audit.py``."""

    def start(self, rows: int, replicas: Sequence[ReplicaFiles], stores: Mapping[str, FileSystem]) -> None:
        """Prepare for this number of rows in files and ledgers."""

    def measure(self, present: Sequence[PresentRows]) -> dict[tuple[int, str], MeasuredFacts]:
        """Return the facts of files by replica and path, without files that have no readable row."""

    def read(self, *, skip_bad: bool) -> None:
        """Read the rows of the measured files; ``skip_bad`` omits rows with a wrong crc."""

    def check(
        self, replica: ReplicaFiles
    ) -> tuple[dict[str, Violations], dict[int, list[tuple[int, str, int, str, int]]]]:
        """Return violations by rule, and by partition the sessions with missing entries and their number."""

    def conflicts(self) -> Violations:
        """Return rows with another row's key and seq but different content, of all replicas."""

    def compare(self, groups: Sequence[tuple[int, int, int, int]]) -> Violations:
        """Return keys that differ between copies; groups are (replica, partition, op_index, members)."""

    def prove(self, given: ProofInput) -> ProofResult:
        """Account for each acknowledged message."""

    def tables(self, newest: Mapping[int, int], now_ms: int) -> dict[str, list[dict[str, Any]]]:
        """Return the small tables of the report, from one replica of each partition."""

    def close(self) -> None:
        """Release the rows."""
