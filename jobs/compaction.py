"""One compaction: check the inputs, merge, verify the output, publish the manifest last.

A partition with a damaged input or a row with a wrong CRC is held: its files are carried unchanged, the rows are copied
into quarantine and reported, and no older version reappears. ``jobs/merge.py`` decides which rows are removed,
``jobs/compact.py`` is the command line.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conf.urls import mask_urls
from jobs.engine import JobEngine
from jobs.facts import fill_entry
from jobs.files import FileSystem, LocalFiles, local_path, newest_with_bytes, open_directory
from jobs.findings import AuditFinding, JobExitCode, Severity
from jobs.merge_counts import MergeCounts
from jobs.merge_engine import MergeEngine
from jobs.removed_entries import merge_ranges
from jobs.selection import CompactionPolicy, SelectedPartitions, select
from jobs.spark import open_session, report_stage
from wire.sstable.manifest import FileEntry, Manifest, ManifestExists, next_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CompactResult", "CompactionFailed", "run_compact"]

WRITER = {"name": "stratamq jobs compact", "version": "1"}

Step = Callable[[str], None]  # called with the name of each completed step; a test raises from it


def _ignore_step(_name: str) -> None:
    pass


class CompactionFailed(RuntimeError):
    """The inputs cannot be merged, or the output does not match them; nothing was published."""


@dataclass(slots=True)
class CompactResult:
    """Result of a compaction."""

    manifest_no: int = 0  # 0: nothing to do, nothing published
    partitions: list[int] = field(default_factory=list)
    rows_in: int = 0
    rows_out: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    held: dict[int, str] = field(default_factory=dict)
    findings: list[AuditFinding] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def exit_code(self) -> JobExitCode:
        """Exit code of the run, by whether there are findings."""
        return JobExitCode.FINDINGS if self.findings else JobExitCode.CLEAN


def run_compact(
    input_dir: str,
    output_dir: str,
    now_ms: int,
    *,
    policy: CompactionPolicy | None = None,
    remove_by_session: bool = True,
    run_id: str = "",
    spark: SparkSession | None = None,
    step: Step | None = None,
    engine: JobEngine = JobEngine.SPARK,
) -> CompactResult:
    """Compact the store in input_dir; publish into output_dir, which may be the same.

    Args:
        now_ms: UTC ms; rows with expiry_ms at or before it have expired. The machine's clock is not used.
        remove_by_session: Also remove entries that the session rows mark as finished (one more small query).
        run_id: Name of the folder for new runs; random by default.
        spark: Session of the engine SPARK; opened if None.
        engine: LOCAL reads and writes folders of this machine only.
    Raises:
        FileNotFoundError: input_dir has no manifest.
        ManifestDamaged: The newest manifest is damaged.
        ManifestExists: Another job published first; the files of this one are deleted.
        CompactionFailed: The inputs are copies of each other, or the verification found a difference.
    """
    run_id = run_id or f"{now_ms}-{secrets.token_hex(4)}"
    merge: MergeEngine
    if engine is JobEngine.LOCAL:
        from jobs.local_compaction import LocalMerge

        source, target = LocalFiles(local_path(input_dir)), LocalFiles(local_path(output_dir))
        merge = LocalMerge(source, target)
        job = _Compaction(merge, source, target, now_ms, policy or CompactionPolicy(), remove_by_session, run_id)
    else:
        from jobs.spark_compaction import SparkMerge

        spark = spark or open_session("stratamq-compact")
        source_dir, target_dir = open_directory(spark, input_dir), open_directory(spark, output_dir)
        merge = SparkMerge(spark, source_dir, target_dir)
        job = _Compaction(
            merge, source_dir, target_dir, now_ms, policy or CompactionPolicy(), remove_by_session, run_id
        )
    return job.run(step or _ignore_step)


class _Compaction:
    """One run: inputs are read once at the start, then the steps run in order."""

    def __init__(
        self,
        engine: MergeEngine,
        source: FileSystem,
        target: FileSystem,
        now_ms: int,
        policy: CompactionPolicy,
        remove_by_session: bool,
        run_id: str,
    ) -> None:
        self.engine = engine
        self.source = source
        self.target = target
        self.in_place = self.source.uri() == self.target.uri()
        self.now_ms = now_ms
        self.remove_by_session = remove_by_session
        self.run_id = run_id
        newest = newest_with_bytes(self.source)
        if newest is None:
            raise FileNotFoundError(f"no manifest in {mask_urls(self.source.uri())}")
        self.manifest, self.manifest_bytes = newest
        if self.manifest.replica_op_index:  # a merge would restore rows of a copy that lags
            raise CompactionFailed(
                f"the newest manifest in {mask_urls(self.source.uri())} holds the copies of each node (store export "
                "--replicas): audit it, and compact an export without --replicas"
            )
        published = newest if self.in_place else newest_with_bytes(self.target)
        self.number = (published[0].manifest_no if published else 0) + 1
        self.selected = select(self.manifest, policy, now_ms)
        self.result = CompactResult()
        self.quarantine: list[str] = []
        self._started = time.monotonic()

    def run(self, step: Step) -> CompactResult:
        if not self.selected and self.in_place:
            report_stage("nothing to compact")
            return self.result
        self.engine.start(sum(chosen.rows for chosen in self.selected), self.manifest.ring.partitions)
        self._check_inputs()
        self._done(step, "inputs-checked", f"{sum(len(s.files) for s in self.selected)} input files checked")
        entries: list[FileEntry] = []
        attempt = 0
        while self.selected:
            attempt += 1
            folder = f"runs/{self.run_id}" + (f"-{attempt}" if attempt > 1 else "")
            counts = self.engine.merge(self.selected, self.now_ms, folder, remove_by_session=self.remove_by_session)
            self._done(step, "written", f"{counts.rows_in} rows merged, {counts.kept} written to {folder}")
            if self._hold_damaged(counts):
                self.target.delete(folder)  # retry without the held partitions
                continue
            entries = self._verify(folder, counts)
            self._done(step, "verified", f"{len(entries)} runs verified")
            break
        draft = self._manifest(entries)
        self._carry(draft)
        self.target.sync([entry.path for entry in entries] + self.quarantine)
        self._done(step, "synced", "files synced")
        try:
            self.target.publish(draft)
        except ManifestExists:
            for name in self.target.names("runs"):
                if name == self.run_id or name.startswith(self.run_id + "-"):
                    self.target.delete(f"runs/{name}")
            for path in self.quarantine:
                self.target.delete(path.rpartition("/")[0])
            raise
        self.result.manifest_no = draft.manifest_no
        self._done(step, "published", f"manifest {draft.manifest_no} published")
        return self.result

    def _done(self, step: Step, name: str, text: str) -> None:
        now = time.monotonic()
        self.result.seconds[name] = round(now - self._started, 3)
        report_stage(f"{text} ({now - self._started:.1f} s)")
        self._started = now
        step(name)

    # -- inputs ------------------------------------------------------------------------------------------------------

    def _check_inputs(self) -> None:
        """Hold the partitions with an input that differs from its manifest entry."""
        found = self.source.identify([f.path for s in self.selected for f in s.files])
        changed: list[FileEntry] = []
        for chosen in self.selected:
            for entry in chosen.files:
                facts = found[entry.path]
                if facts is None:
                    self._hold(chosen.partition, "missing_file", entry.path, "the file is missing")
                elif facts != (entry.bytes, entry.sha256):
                    detail = f"sha256 {facts.sha256}, manifest says {entry.sha256}"
                    self._hold(chosen.partition, "file_changed", entry.path, detail)
                    changed.append(entry)
        self._drop_held()
        if changed:  # their readable rows show the damaged ones
            self._quarantine(changed)

    def _hold(self, partition: int, finding: str, file: str, detail: str, key: str = "", seq: int = -1) -> None:
        self.result.held.setdefault(partition, finding)
        self.result.findings.append(
            AuditFinding(finding, Severity.ERROR, file, partition, key, seq, f"{detail}; the partition is held")
        )

    def _drop_held(self) -> None:
        self.selected = [s for s in self.selected if s.partition not in self.result.held]

    def _inputs(self) -> list[FileEntry]:
        return [f for s in self.selected for f in s.files]

    # -- merge -------------------------------------------------------------------------------------------------------

    def _hold_damaged(self, counts: MergeCounts) -> bool:
        """Find, quarantine and report bad or misfiled rows, if the counts differ from the manifest."""
        inputs = [(s.partition, f) for s in self.selected for f in s.files]
        expected = (
            sum(f.rows for _, f in inputs),
            sum(int(f.digest[:16], 16) for _, f in inputs),
            sum(p * f.rows for p, f in inputs),
            sum(p * p * f.rows for p, f in inputs),
            0,
        )
        seen = (counts.rows_in, counts.crc_in, counts.partition_sum, counts.partition_squares, counts.bad)
        if seen == expected:
            return False
        if not self._quarantine(self._inputs()):
            raise CompactionFailed(f"inputs read as {seen}, manifest says {expected}")
        self._drop_held()
        return True

    def _quarantine(self, files: list[FileEntry]) -> int:
        """Copy bad and misfiled rows into quarantine, and hold their partitions; return their number."""
        folder = f"quarantine/{self.run_id}-{len(self.quarantine) + 1}"
        damaged = self.engine.write_damaged(files, folder)
        for row in damaged:
            finding = "misfiled_row" if row.crc_matches else "bad_crc"
            detail = f"row says partition {row.partition}" if row.crc_matches else "crc does not match"
            self._hold(row.file_partition, finding, row.path, detail, row.key.hex(), row.seq)
        if damaged:
            self.quarantine += [f"{folder}/{name}" for name in self.target.names(folder)]
        else:
            self.target.delete(folder)
        return len(damaged)

    # -- output ------------------------------------------------------------------------------------------------------

    def _verify(self, folder: str, counts: MergeCounts) -> list[FileEntry]:
        """Read the output and compare it with the counts of the merge; return its manifest entries."""
        paths = [f"{folder}/{name}" for name in self.target.names(folder)]
        found = self.engine.measure(paths, self.now_ms)
        identities = self.target.identify(paths)
        inputs = {s.partition: s for s in self.selected}
        entries: list[FileEntry] = []
        rows = hash_xor = 0
        for path in paths:
            facts = found.get(path)
            if facts is None:  # an empty file of a task without rows
                self.target.delete(path)
                continue
            if facts.partition_min != facts.partition_max or facts.partition_min not in inputs:
                raise CompactionFailed(f"{path} has partitions {facts.partition_min} to {facts.partition_max}")
            if facts.disorder or facts.bad_rows:
                raise CompactionFailed(f"{path}: {facts.disorder} rows out of order, {facts.bad_rows} bad")
            identity = identities[path]
            assert identity is not None
            entry = _entry(path, inputs[facts.partition_min], self.now_ms)
            entry.bytes, entry.sha256 = identity
            entries.append(fill_entry(entry, facts))
            rows += facts.rows
            hash_xor ^= facts.hash_xor
        self._compare(entries, rows, hash_xor, counts)
        if counts.by_fate["expired"]:
            expired = self.engine.count_expired(self.selected, self.now_ms)
            for entry in entries:
                entry.expired_removed += expired.get(entry.partition, 0)
        if counts.by_fate["expired"] or counts.by_fate["acknowledged"]:  # an expired session's entries are listed too
            listed = self.engine.list_expired(self.selected, self.now_ms)
            for entry in entries:
                entry.expired_entries = merge_ranges([*entry.expired_entries, *listed.get(entry.partition, ())])
        self.result.rows_in += counts.rows_in
        self.result.rows_out += rows
        self.result.partitions = sorted(inputs)
        self.result.removed = {name: n for name, n in counts.by_fate.items() if name != "kept"}
        return entries

    @staticmethod
    def _compare(entries: list[FileEntry], rows: int, hash_xor: int, counts: MergeCounts) -> None:
        if len({entry.partition for entry in entries}) != len(entries):
            raise CompactionFailed("a partition was written to more than one file")
        if (rows, hash_xor) != (counts.kept, counts.hash_out):
            raise CompactionFailed(f"{rows} rows read back, {counts.kept} written, or their content differs")
        if sum(counts.by_fate.values()) != counts.rows_in:
            raise CompactionFailed(f"{counts.rows_in} rows in, fates of {sum(counts.by_fate.values())}")

    def _manifest(self, entries: list[FileEntry]) -> Manifest:
        draft = next_manifest(self.manifest, self.manifest_bytes)
        draft.manifest_no = self.number
        draft.created_ms = self.now_ms
        draft.writer = dict(WRITER)
        merged = {f.path for s in self.selected for f in s.files}
        draft.files = [f for f in self.manifest.files if f.path not in merged] + entries
        draft.job.kind = "compact"
        draft.job.now_ms = self.now_ms
        draft.job.run_id = self.run_id
        draft.job.inputs = [f.sha256 for s in self.selected for f in s.files]
        draft.job.removed = self.result.removed
        draft.job.held = {str(p): reason for p, reason in sorted(self.result.held.items())}
        draft.job.before = {str(s.partition): [len(s.files), s.rows, s.bytes] for s in self.selected}
        draft.quarantine = [*draft.quarantine, *self.quarantine]
        for chosen in self.selected:
            if chosen.complete:
                draft.tombstone_horizon_seq[str(chosen.partition)] = max(f.seq_max for f in chosen.files)
        return draft

    def _carry(self, draft: Manifest) -> None:
        """Copy unmerged files into a separate output, so that it is complete."""
        if self.in_place:
            return
        carried = [f for f in draft.files if not f.path.startswith(f"runs/{self.run_id}")]
        present = self.target.identify([f.path for f in carried])
        for entry in carried:
            facts = present[entry.path]
            if facts is None and self.result.held.get(entry.partition) != "missing_file":
                self.target.copy_from(self.source, entry.path)
            elif facts not in (None, (entry.bytes, entry.sha256)) and entry.partition not in self.result.held:
                raise CompactionFailed(f"{entry.path} exists in the output and is another file")


def _entry(path: str, chosen: SelectedPartitions, now_ms: int) -> FileEntry:
    nodes = sorted({f.node for f in chosen.files})
    return FileEntry(
        path=path,
        partition=chosen.partition,
        level=max(f.level for f in chosen.files) + 1,
        generation=max(f.generation for f in chosen.files),
        full=chosen.complete,
        written_ms=now_ms,
        expired_removed=sum(f.expired_removed for f in chosen.files),
        expired_entries=merge_ranges(each for f in chosen.files for each in f.expired_entries),
        node=nodes[0] if len(nodes) == 1 else "",
    )
