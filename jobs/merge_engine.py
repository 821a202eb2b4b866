"""The interface between a compaction and its engine: the work on rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from jobs.facts import MeasuredFacts
from jobs.merge_counts import MergeCounts
from jobs.selection import SelectedPartitions
from wire.sstable.manifest import FileEntry

__all__ = ["DamagedRow", "MergeEngine"]


class DamagedRow(NamedTuple):
    """A row whose crc does not match, or of another partition than its file."""

    path: str
    file_partition: int
    partition: int
    key: bytes
    seq: int
    crc_matches: bool


class MergeEngine(Protocol):
    """The work on rows: ``jobs/spark_compaction.py`` and ``jobs/local_compaction.py``."""

    def start(self, rows: int, partitions: int) -> None:
        """Prepare for an input of this size, from a ring with so many partitions."""

    def merge(
        self, selected: Sequence[SelectedPartitions], now_ms: int, folder: str, *, remove_by_session: bool
    ) -> MergeCounts:
        """Write one run for each partition into a folder of the target; return the counts of the rows."""

    def write_damaged(self, files: Sequence[FileEntry], folder: str) -> list[DamagedRow]:
        """Copy bad and misfiled rows with the name of their file into a folder of the target; return them."""

    def measure(self, paths: Sequence[str], now_ms: int) -> dict[str, MeasuredFacts]:
        """Return the facts of files of the target by path; none of a file without rows."""

    def count_expired(self, selected: Sequence[SelectedPartitions], now_ms: int) -> dict[int, int]:
        """Return the number of expired queue entries of each complete partition."""

    def list_expired(
        self, selected: Sequence[SelectedPartitions], now_ms: int
    ) -> dict[int, list[tuple[int, int, int]]]:
        """Return them, and the entries of expired sessions, as ranges: session, first and last session_seq."""
