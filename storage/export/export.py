"""Exports one partition as SSTables: a consistent snapshot, in slices, while the partition serves.

A small partition is read in one slice. A store's transactions contain whole operations, so one scan returns the state
at the op_index of its META row. A larger one is read slice by slice, each with a new cursor, while the op log provides
concurrent changes. These changes, newest version per key, make a second run, of the next generation, which supersedes
inconsistent rows of the slices. Both together are the state at the last op_index read from the log. That costs memory
for the keys changed during the scan, and does not pin the store.

No run is finished before every operation in it is committed, so an export has no operation that a new primary may
truncate. An increment consists of such a run of changes only. The caller selects copies, pauses, and publishes the
manifest. Source: docs/adr/0009-key-order-and-sstables.md.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from storage.export.run_rows import NOT_EXPORTED, RowReader
from storage.state import keys
from storage.state.partition import Reads
from storage.state.rows import LocalRow, LogRow, MetaRow, SessionRow, unpack
from wire.sstable.manifest import FileEntry
from wire.sstable.writer import RunWriter

__all__ = ["ExportError", "ExportTarget", "ExportedCopy", "PartitionExport", "PrimaryMoved", "Step", "StoredCopy"]

SLICE_ROWS = 500  # read and written between two pauses: about 2 ms
SNAPSHOT_ROWS = 1_000  # maximum for a single scan without op log tail, hence one run
LOG_ROWS = 50  # of the op log, read between two pauses
NO_LIMIT = 1 << 62

Step = Callable[[], object] | None  # blocking disk work for a thread, or None: yield to other tasks


class ExportError(Exception):
    """A partition cannot be exported now; the message has the reason, in one line."""


class PrimaryMoved(ExportError):
    """The copy left this node, or too few copies are in sync: another node or a later request can export it."""


class ExportedCopy(Protocol):
    """A copy of a partition, as read by an export."""

    @property
    def number(self) -> int:
        """The partition."""

    @property
    def store(self) -> Reads:
        """The store with its rows."""

    @property
    def committed(self) -> int:
        """Commit index; -1 when the copy has moved away."""

    def served_ms(self, meta: MetaRow) -> int:
        """Return the served clock now, given the META row."""


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """A copy in a store that no node has open."""

    number: int
    store: Reads
    committed: int = NO_LIMIT

    def served_ms(self, meta: MetaRow) -> int:
        """Return the served clock of the META row: it is stopped."""
        return meta.served_ms


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """Destination of runs, and their metadata.

    Attributes:
        folder: Of the runs of this export; exists.
        root: The manifest's directory.
        node: The node of the copies.
        now_ms: UTC ms.
    """

    folder: Path
    root: Path
    node: str
    now_ms: int


@dataclass(slots=True)
class PartitionExport:
    """Exports one copy; iterate ``steps`` to its end, then read the result.

    Args:
        copy: The copy to export.
        target: The destination.
        generation: Of the first run.
        since: op_index of an older export to extend; None for a full one.
        slice_rows: Rows between two pauses; higher values are faster but delay other tasks.

    Attributes:
        files: The runs written; none for a copy without rows, or without changes.
        op_index: The runs, with the older export, are the state after this operation.
        full: They need no older export.
        rows: Written so far.
        cut: An increment was requested but the op log did not reach back far enough.
    """

    copy: ExportedCopy
    target: ExportTarget
    generation: int = 1
    since: int | None = None
    slice_rows: int = SLICE_ROWS
    files: list[FileEntry] = field(default_factory=list)
    op_index: int = 0
    full: bool = True
    cut: bool = False
    rows: int = 0
    _followed: int = 0  # op_index up to which changes were read
    _changes: dict[bytes, tuple[bytes | None, int, int]] = field(default_factory=dict)

    def steps(self) -> Generator[Step, None, None]:
        """Run the export; pause between two steps, and run their work in a thread.

        Raises:
            ExportError: The log was trimmed faster than it was read, or the copy moved away.
            StoreError: A row cannot be read.
        """
        meta = self._meta()
        self.op_index = meta.op_index
        if meta.op_index == 0:
            return
        if self.since is not None and self._reaches_back_to(self.since, meta.op_index):
            self.full = False
            self._followed = self.since
            yield from self._follow_log(meta.op_index)
        else:
            self.cut = self.since is not None
            self._followed = meta.op_index
            yield from self._write_base(meta)
        if self._changes:
            yield from self._write_changes()

    def described(self) -> dict[str, object]:
        """Return the result for the publisher of the manifest."""
        return {
            "partition": self.copy.number,
            "op_index": self.op_index,
            "full": self.full,
            "cut": self.cut,
            "files": [msgspec.to_builtins(entry) for entry in self.files],
        }

    # --- the state

    def _write_base(self, meta: MetaRow) -> Iterator[Step]:
        wanted = SNAPSHOT_ROWS
        found = self._scan(keys.partition_range(self.copy.number)[0], wanted)
        snapshot = len(found) < wanted
        if not found:
            return
        writer, reader = self._writer(full=True), self._reader(meta)
        try:
            while found:
                for first in range(0, len(found), self.slice_rows):
                    part = found[first : first + self.slice_rows]
                    writer.write(reader.rows(part, meta.op_index, meta.partition_epoch))
                    self.rows += len(part)
                    yield None
                if len(found) < wanted:
                    break  # the end of the scan; later rows after it are in the op log
                self._log_slice(self._meta().op_index)
                wanted = self.slice_rows
                found = self._scan(found[-1][0] + b"\x00", wanted)
            if not snapshot:
                yield from self._follow_log(self._meta().op_index)
            yield from self._end_run(writer, meta.op_index)
        except BaseException:
            writer.abort()
            raise

    def _scan(self, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the next rows to export; fewer than the limit only at the end."""
        number = self.copy.number
        log_start, log_stop = keys.kind_range(number, keys.LOG)
        rows: list[tuple[bytes, bytes]] = []
        for lower, upper in (
            (keys.local_key(number) + b"\x00", log_start),
            (log_stop, keys.partition_range(number)[1]),
        ):
            if start < upper and len(rows) < limit:
                rows += self.copy.store.scan(max(start, lower), upper, limit - len(rows))
        return rows

    # --- changes

    def _reaches_back_to(self, since: int, op_index: int) -> bool:
        if since > op_index:
            return False  # the older export is of another incarnation of this partition
        value = self.copy.store.get(keys.local_key(self.copy.number))
        local = unpack(LocalRow, value) if value is not None else LocalRow()
        return since == op_index or local.log_start <= since + 1

    def _follow_log(self, end: int) -> Iterator[Step]:
        while self._followed < end:
            self._log_slice(end)
            yield None
        self.op_index = max(self.op_index, self._followed)

    def _log_slice(self, end: int) -> None:
        """Read the next operations of the log; ``end`` is the end of a whole one."""
        if self._followed >= end:
            return
        number, first = self.copy.number, self._followed + 1
        for _, value in self.copy.store.scan(keys.log_key(number, first), keys.log_key(number, end + 1), LOG_ROWS):
            row = unpack(LogRow, value)
            if row.op_index != self._followed + 1:
                break
            for key, change in row.writes:
                if key[2:3] not in NOT_EXPORTED:
                    self._changes[key] = (change, row.op_index, row.partition_epoch)
            self._followed = row.op_index
        if self._followed < first:
            raise ExportError(
                f"partition {number}: operation {first} is not in the op log any more; raise storage.log_operations_max"
            )

    def _write_changes(self) -> Iterator[Step]:
        meta = self._meta()
        writer, reader = self._writer(full=False), self._reader(meta)
        changed = sorted(self._changes)
        try:
            for first in range(0, len(changed), self.slice_rows):
                rows = []
                for key in changed[first : first + self.slice_rows]:
                    value, seq, epoch = self._changes[key]
                    if value is None:
                        rows.append(reader.tombstone(key, seq, epoch))
                    else:
                        rows.append(reader.row(key, value, seq, epoch))
                writer.write(rows)
                self.rows += len(rows)
                yield None
            yield from self._end_run(writer, self.op_index)
        except BaseException:
            writer.abort()
            raise

    # --- both

    def _meta(self) -> MetaRow:
        value = self.copy.store.get(keys.meta_key(self.copy.number))
        return unpack(MetaRow, value) if value is not None else MetaRow()

    def _reader(self, meta: MetaRow) -> RowReader:
        return RowReader(self.copy.number, self.target.now_ms, self.copy.served_ms(meta), self._session_row)

    def _session_row(self, number: int) -> SessionRow | None:
        value = self.copy.store.get(keys.session_key(self.copy.number, number))
        return unpack(SessionRow, value) if value is not None else None

    def _writer(self, *, full: bool) -> RunWriter:
        target, number = self.target, self.copy.number
        generation = self.generation + len(self.files)
        name = f"{target.node or 'node'}-p{number:05d}-g{generation:06d}.parquet"
        return RunWriter(
            target.folder / name,
            number,
            generation=generation,
            node=target.node,
            full=full,
            now_ms=target.now_ms,
            root=target.root,
        )

    def _end_run(self, writer: RunWriter, op_index: int) -> Iterator[Step]:
        while self.copy.committed < op_index:
            if self.copy.committed < 0:
                raise PrimaryMoved(f"partition {self.copy.number} moved away during its export")
            yield None
        yield writer.close
        self.files.append(writer.entry)
