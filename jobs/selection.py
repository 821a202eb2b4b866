"""The partitions and files that a compaction merges, as pure rules over the manifest.

A merge of all files of a partition is complete: it may remove tombstones, expired and acknowledged rows, because no
older version can reappear. A partial merge excludes a large base and removes only superseded versions.
"""

from __future__ import annotations

from dataclasses import dataclass

from wire.sstable.manifest import FileEntry, Manifest

__all__ = ["CompactionPolicy", "SelectedPartitions", "select"]


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When to merge a partition."""

    generations: int = 4  # merge a partition with this many files; a lower value writes more, a higher slows reads
    garbage: float = 0.25  # or with this share of rows known to be tombstones or expired
    partial: bool = False  # exclude a base that is much larger than all newer files together
    base_factor: float = 4.0  # how much larger
    everything: bool = False  # merge all partitions
    partitions: frozenset[int] | None = None  # only these

    def __post_init__(self) -> None:
        if self.generations < 1 or not 0 <= self.garbage <= 1:
            raise ValueError("generations must be 1 or more, garbage between 0 and 1")


@dataclass(frozen=True, slots=True)
class SelectedPartitions:
    """The inputs from one partition, oldest generation first."""

    partition: int
    files: tuple[FileEntry, ...]
    complete: bool  # every file of the partition is an input

    @property
    def rows(self) -> int:
        """Number of rows in all files."""
        return sum(f.rows for f in self.files)

    @property
    def bytes(self) -> int:
        """Size of all files in bytes."""
        return sum(f.bytes for f in self.files)


def select(manifest: Manifest, policy: CompactionPolicy, now_ms: int) -> list[SelectedPartitions]:
    """Return the partitions to merge, in ascending order."""
    chosen = []
    for partition in manifest.partitions:
        if policy.partitions is not None and partition not in policy.partitions:
            continue
        files = manifest.files_of(partition)
        if policy.everything or len(files) >= policy.generations or _garbage(files, now_ms) > policy.garbage:
            inputs = _without_base(files, policy)
            chosen.append(SelectedPartitions(partition, tuple(inputs), complete=len(inputs) == len(files)))
    return chosen


def _garbage(files: list[FileEntry], now_ms: int) -> float:
    """Return the share of known garbage: tombstones, one hidden row for each, and expired rows."""
    rows = sum(f.rows for f in files)
    tombstones = sum(f.tombstones for f in files)
    hidden = tombstones if len(files) > 1 else 0
    expired = sum(f.expired_at_write for f in files)
    if len(files) == 1 and files[0].level and files[0].min_expiry_ms > now_ms:
        expired = 0
    return min(1.0, (tombstones + hidden + expired) / rows) if rows else 1.0


def _without_base(files: list[FileEntry], policy: CompactionPolicy) -> list[FileEntry]:
    newer = files[1:]
    if policy.partial and len(newer) > 1 and files[0].bytes > policy.base_factor * sum(f.bytes for f in newer):
        return newer
    return files
