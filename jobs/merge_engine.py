"""The interface between a compaction and its engine, which processes the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from jobs.facts import MeasuredFacts
from jobs.merge_counts import MergeCounts
from jobs.selection import SelectedPartitions
from wire.sstable.manifest import FileEntry

__all__ = ["DamagedRow", "MergeEngine"]


class DamagedRow(NamedTuple):
    """A row with a wrong crc, or of another partition than its file."""

    path: str
    file_partition: int
    partition: int
    key: bytes
    seq: int
    crc_matches: bool


class MergeEngine(Protocol):
    """Row processing: ``jobs/spark_compaction.py`` and ``jobs/local_compaction.py``."""

    def start(self, rows: int, partitions: int) -> None:
        """Prepare for an input of this size and a ring with this number of partitions."""

    def merge(
        self, selected: Sequence[SelectedPartitions], now_ms: int, folder: str, *, remove_by_session: bool
    ) -> MergeCounts:
        """Write one run for each partition into a folder of the target; return the counts of the rows."""

    def write_damaged(self, files: Sequence[FileEntry], folder: str) -> list[DamagedRow]:
        """Copy bad and misfiled rows with their file's name into a folder of the target; return them."""

    def measure(self, paths: Sequence[str], now_ms: int) -> dict[str, MeasuredFacts]:
        """Return the facts of the target's files by path, without files that have no rows."""

    def count_expired(self, selected: Sequence[SelectedPartitions], now_ms: int) -> dict[int, int]:
        """Return the number of expired queue entries of each complete partition."""

    def list_expired(
        self, selected: Sequence[SelectedPartitions], now_ms: int
    ) -> dict[int, list[tuple[int, int, int]]]:
        """Return expired entries, and those of expired sessions, as ranges: session, first and last session_seq."""
