"""The Raft disk: log segments, hard state, snapshots, and the distinction of damage from a torn tail.

Files of one folder:

- ``hard_state``: term, vote, bindings and the storage id with a CRC; replaced by write, sync, rename, sync of the
  folder. Changes are rare, so two syncs are acceptable.
- ``log-<number>``: append-only segments of records (``router/raft/segment.py``). A record replaces the stored entry of
  its index and all later ones. No file is cut in place, so a crash cannot lose a middle.
- ``synced``: two slots that alternately name the segment and offset up to which the log was synced. The marker is
  written and synced *before* the log's sync counts, which costs a second sync per group commit. An unreadable record
  before the marker was acknowledged and is lost (``LogDamaged``). One after it was never acknowledged (a torn tail:
  cut). Without the marker, a flipped bit in the last batch would pass for a torn tail and drop acknowledged entries. A
  damaged slot is harmless: the other one is one sync older.
- ``snapshot-<index>``: configuration and state with a CRC; written under another name, synced, renamed, folder synced.
  Then older snapshots and covered segments are deleted. A snapshot that replaces the log starts a *reset* segment.

A new folder is built under another name and renamed, so that a missing file always means damage, never a first start.
Every file contains the storage id of its folder, so that files of different disks cannot be mixed.
Source: Raft paper, figure 2 and section 7. ``router/raft/log_recovery.py`` reads the folder.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from conf.synced_folder import sync_folder
from router.raft.events import HardState, Snapshot, StoredRaftState
from router.raft.files import SyncedMarker, replace_file, write_marker
from router.raft.log_recovery import (
    HARD_STATE,
    SYNCED,
    RecoveredLog,
    Segment,
    StoredHardState,
    StoredSnapshot,
    read_folder,
    segment_name,
    snapshot_name,
)
from router.raft.messages import LogEntry
from router.raft.segment import HEADER_BYTES, SegmentHeader, encode_header, encode_record

__all__ = ["RaftLog", "create_log"]

SEGMENT_BYTES = 8 << 20  # a new segment starts beyond this; covered segments are deleted whole


def create_log(folder: Path, storage_id: int) -> None:
    """Create an empty log with a new identity; a crash leaves either no log or all of it.

    Args:
        storage_id: Random, 1 to 2**63 - 1; names this disk in the group.
    Raises:
        FileExistsError: The folder exists.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists: a Raft log is never created over another")
    building = folder.with_name(folder.name + ".new")
    if building.exists():  # left by a crash during creation: without a name it promised nothing
        shutil.rmtree(building)
    building.mkdir(parents=True)
    header = SegmentHeader(storage_id, 1, 0, 0, False, 0)
    (building / segment_name(1)).write_bytes(encode_header(header))
    marker = os.open(building / SYNCED, os.O_RDWR | os.O_CREAT, 0o600)
    write_marker(marker, SyncedMarker(storage_id, 1, 1, HEADER_BYTES))
    os.close(marker)
    replace_file(building / HARD_STATE, msgspec.msgpack.encode(StoredHardState(storage_id, HardState())))
    for path in building.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(building)
    building.rename(folder)
    sync_folder(folder.parent)


class RaftLog:
    """A ``Storage`` in a folder. Not thread-safe: one call at a time."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._storage_id = 0
        self._segments: list[Segment] = []  # full ones, oldest first; the fields below describe the current one
        self._file = -1
        self._number = 0
        self._offset = 0
        self._chain = 0
        self._lowest = self._highest = 0
        self._marker_file = -1
        self._marker_generation = 0

    def load(self) -> StoredRaftState:
        """Read and check the folder; cut a torn tail.

        Raises:
            LogDamaged: Synced data is missing or changed.
            FileNotFoundError: The folder does not exist.
        """
        if not self._folder.is_dir():
            raise FileNotFoundError(self._folder)
        recovered = read_folder(self._folder)
        self._open_files(recovered)
        # Records after the marker may be in the page cache only; this sync makes them durable.
        self.sync()
        snapshot = recovered.snapshot
        if recovered.void and snapshot is not None:
            self._start_segment(reset=True, base_index=snapshot.index, base_term=snapshot.term)
        self._drop_covered(snapshot)
        hard = recovered.stored_hard_state
        return StoredRaftState(hard.storage_id, hard.hard_state, snapshot, tuple(recovered.entries))

    def _open_files(self, recovered: RecoveredLog) -> None:
        self._storage_id = recovered.stored_hard_state.storage_id
        self._marker_generation = recovered.marker.generation
        self._marker_file = os.open(self._folder / SYNCED, os.O_RDWR)
        for number in reversed(recovered.torn):
            (self._folder / segment_name(number)).unlink()
        *self._segments, last = recovered.segments
        self._number, self._lowest, self._highest, self._offset, self._chain = last
        self._file = os.open(self._folder / segment_name(last.number), os.O_RDWR)
        if os.fstat(self._file).st_size > last.end:
            os.ftruncate(self._file, last.end)
        if recovered.torn:
            sync_folder(self._folder)

    def write(self, hard_state: HardState | None, entries: Sequence[LogEntry]) -> None:
        """Write; see ``Storage``."""
        if hard_state is not None:
            data = msgspec.msgpack.encode(StoredHardState(self._storage_id, hard_state))
            replace_file(self._folder / HARD_STATE, data)
        if not entries:
            return
        if self._offset >= self._segment_bytes:
            self.sync()
            self._start_segment(reset=False, base_index=entries[0].index - 1, base_term=0)
        pieces: list[bytes] = []
        chain = self._chain
        for entry in entries:
            record, chain = encode_record(entry, chain)
            pieces.append(record)
        self._write_all(b"".join(pieces))
        self._chain = chain
        indexes = [entry.index for entry in entries]
        self._lowest = min(self._lowest or indexes[0], *indexes)
        self._highest = max(self._highest, *indexes)

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file, view, self._offset)
            self._offset += written
            view = view[written:]

    def sync(self) -> None:
        """Sync the log, then the marker with its end."""
        os.fdatasync(self._file)
        self._marker_generation += 1
        marker = SyncedMarker(self._storage_id, self._marker_generation, self._number, self._offset)
        write_marker(self._marker_file, marker)

    def _start_segment(self, *, reset: bool, base_index: int, base_term: int) -> None:
        number = self._number + 1
        path = self._folder / segment_name(number)
        header = SegmentHeader(self._storage_id, number, base_index, base_term, reset, self._chain)
        with path.open("wb") as file:
            file.write(encode_header(header))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._folder)
        self._segments.append(Segment(self._number, self._lowest, self._highest, self._offset, self._chain))
        os.close(self._file)
        self._file = os.open(path, os.O_RDWR)
        self._number, self._offset, self._lowest, self._highest = number, HEADER_BYTES, 0, 0
        self.sync()

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Make an own snapshot durable, then delete the covered files."""
        self._write_snapshot(snapshot)
        self._drop_covered(snapshot)

    def install_snapshot(self, snapshot: Snapshot) -> None:
        """Make the leader's snapshot durable, then discard the whole log."""
        self._write_snapshot(snapshot)
        self._start_segment(reset=True, base_index=snapshot.index, base_term=snapshot.term)
        self._segments = [segment._replace(highest_index=0) for segment in self._segments]
        self._drop_covered(snapshot)

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        data = msgspec.msgpack.encode(StoredSnapshot(self._storage_id, snapshot))
        replace_file(self._folder / snapshot_name(snapshot.index), data)

    def _drop_covered(self, snapshot: Snapshot | None) -> None:
        """Delete older snapshots and, from the oldest, full segments without entries after the snapshot."""
        if snapshot is None:
            return
        for path in sorted(self._folder.glob("snapshot-*"))[:-1]:
            path.unlink()
        while self._segments and self._segments[0].highest_index <= snapshot.index:
            (self._folder / segment_name(self._segments[0].number)).unlink()
            del self._segments[0]
        sync_folder(self._folder)

    def close(self) -> None:
        """Close the files."""
        for file in (self._file, self._marker_file):
            if file >= 0:
                os.close(file)
        self._file = self._marker_file = -1
