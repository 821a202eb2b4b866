"""Rules for each file of a manifest and between the files of a partition, as pure functions of measured facts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from jobs.facts import MeasuredFacts, entry_differences
from jobs.files import FileFacts
from jobs.findings import AuditFinding, Severity
from wire.sstable.manifest import FileEntry, Manifest

__all__ = ["ReplicaFiles", "content_findings", "identity_findings", "lineage_findings"]


@dataclass(frozen=True, slots=True)
class ReplicaFiles:
    """One node's files of a store."""

    number: int
    name: str  # in findings
    manifest: Manifest
    files: tuple[FileEntry, ...]
    node: str = ""  # "" after a compaction: the files come from several nodes

    def op_index(self, partition: int) -> int:
        """Return the op_index up to which the files hold the partition's operations; -1 if the manifest has none."""
        return self.manifest.op_index_at(self.node, partition)


def _error(finding: str, entry: FileEntry, detail: str, severity: str = Severity.ERROR) -> AuditFinding:
    return AuditFinding(finding, severity, entry.path, entry.partition, "", -1, detail)


def identity_findings(
    entry: FileEntry, facts: FileFacts | None, others: dict[str, FileEntry]
) -> Iterator[AuditFinding]:
    """Yield findings if a file is not the one that the manifest lists.

    Args:
        others: Entries of the manifest and its ancestors by sha256.
    """
    if facts is None:
        yield _error("missing_file", entry, "listed in the manifest, but missing")
    elif facts != (entry.bytes, entry.sha256):
        yield _error("file_changed", entry, f"{facts.bytes} bytes, sha256 {facts.sha256}, not as listed")
        other = others.get(facts.sha256)
        if other is not None and other.path != entry.path:
            yield _error("older_generation_replayed", entry, f"has the content of {other.path}")


def content_findings(entry: FileEntry, found: MeasuredFacts | None, horizon: int) -> Iterator[AuditFinding]:
    """Yield findings for content that differs from manifest or format; ``found`` is None for an unreadable file."""
    if found is None:
        if entry.rows:
            yield _error("unreadable_file", entry, "no row can be read")
        return
    if found.bad_rows:
        yield _error("bad_crc", entry, f"{found.bad_rows} rows whose crc does not match")
    if found.disorder > found.repeats:
        yield _error("out_of_order", entry, f"{found.disorder - found.repeats} rows out of key order")
    if found.repeats:
        yield _error("duplicate_key", entry, f"{found.repeats} keys more than once")
    if (found.partition_min, found.partition_max) != (entry.partition, entry.partition):
        yield _error("misfiled_row", entry, f"rows of partitions {found.partition_min} to {found.partition_max}")
    differences = entry_differences(entry, found)
    if found.tombstones < entry.tombstones:
        lost = f"{entry.tombstones - found.tombstones} tombstones fewer than listed"
        yield _error("tombstone_lost", entry, lost)
    expired = differences.pop("expired_at_write", "")
    if expired and found.expired > entry.expired_at_write:
        yield _error("expired_present", entry, f"rows expired when written: {expired}", Severity.WARNING)
    if differences:
        detail = "; ".join(f"{name} {text}" for name, text in differences.items())
        yield _error("manifest_mismatch", entry, detail)
    if found.tombstone_seq_min is not None and found.tombstone_seq_min <= horizon:
        detail = f"tombstone of seq {found.tombstone_seq_min}, horizon {horizon}"
        yield _error("tombstone_behind_horizon", entry, detail, Severity.WARNING)


def lineage_findings(replica: ReplicaFiles, found: dict[str, MeasuredFacts]) -> Iterator[AuditFinding]:
    """Yield findings if the generations of a partition do not follow one another.

    A generation starts above the last operation of the previous one; otherwise an old state was restored.
    """
    by_partition: dict[int, list[FileEntry]] = defaultdict(list)
    seen: dict[str, FileEntry] = {}
    for entry in replica.files:
        by_partition[entry.partition].append(entry)
        if entry.sha256 in seen:
            yield _error("older_generation_replayed", entry, f"is {seen[entry.sha256].path} again")
        seen.setdefault(entry.sha256, entry)
    for partition, entries in sorted(by_partition.items()):
        entries.sort(key=lambda entry: (entry.generation, entry.path))
        reached = -1
        for entry in entries:
            facts = found.get(entry.path)
            low, high = (facts.seq_min, facts.seq_max) if facts else (entry.seq_min, entry.seq_max)
            if low <= reached:
                detail = f"begins at seq {low}, an older generation reaches {reached}"
                yield _error("older_generation_replayed", entry, detail)
            reached = max(reached, high)
        if -1 < replica.op_index(partition) < reached:
            detail = f"seq {reached} above the manifest's op_index {replica.op_index(partition)}"
            yield _error("beyond_op_index", entries[-1], detail)
