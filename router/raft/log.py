"""The Raft disk: log segments, hard state, snapshots, and how damage is told from a torn tail.

Files of one folder:

- ``hard_state``: term, vote, bindings and the storage id with a CRC; replaced by write, sync, rename, sync of the
  folder. Rare, so two syncs do not matter.
- ``log-<number>``: segments of records (``router/raft/segment.py``), only ever appended to. An index that is there
  already replaces it and everything behind: nothing is cut in place, so a crash cannot lose a middle.
- ``synced``: two slots that name, alternately, the segment and offset up to which the log was synced. After each sync
  of the log the marker is written and synced *before* the sync counts, so it costs a second sync per group commit and
  buys certainty: what cannot be read before the marker was promised and is gone (``LogDamaged``), what cannot be read
  behind it was never acknowledged (a torn tail: cut). Without it a flipped bit in the last batch would look like a torn
  tail and silently take acknowledged entries with it. A damaged slot is harmless: the other one is one sync older.
- ``snapshot-<index>``: configuration and state with a CRC; written under another name, synced, renamed, folder synced;
  only then older snapshots and covered segments go. A snapshot that replaces the log starts a segment marked *reset*.

A new folder is built under another name and renamed, so that a missing file is always damage, never a first start.
The storage id, drawn with the folder, stands in every file: files of different disks cannot be mixed.
Source: Raft paper, section 7 and figure 2; the sync order is docs/adr's, tested by crashes at every step.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from router.raft.events import HardState, Snapshot, Stored
from router.raft.files import SyncedMarker, read_checked, read_marker, replace_file, sync_folder, write_marker
from router.raft.messages import Entry
from router.raft.segment import (
    HEADER_BYTES,
    SegmentHeader,
    decode_header,
    encode_header,
    encode_record,
    read_records,
)
from router.raft.storage import LogDamaged

__all__ = ["RaftLog", "create_log"]

SEGMENT_BYTES = 8 << 20  # a new segment is begun beyond this; covered segments are deleted whole

_HARD_STATE = "hard_state"
_SYNCED = "synced"


class _StoredHardState(msgspec.Struct, array_like=True, frozen=True):
    storage_id: int
    hard_state: HardState


class _StoredSnapshot(msgspec.Struct, array_like=True, frozen=True):
    storage_id: int
    snapshot: Snapshot


def create_log(folder: Path, storage_id: int) -> None:
    """Create an empty log with a new identity; a crash leaves either nothing or all of it.

    Args:
        storage_id: Random, 1 to 2**63 - 1; names this disk in the group.
    Raises:
        FileExistsError: The folder is there already.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists: a Raft log is never created over another")
    building = folder.with_name(folder.name + ".new")
    if building.exists():  # a crash while creating: never had a name, never promised anything
        shutil.rmtree(building)
    building.mkdir(parents=True)
    header = SegmentHeader(storage_id, 1, 0, 0, False, 0)
    (building / _segment_name(1)).write_bytes(encode_header(header))
    marker = os.open(building / _SYNCED, os.O_RDWR | os.O_CREAT)
    write_marker(marker, SyncedMarker(storage_id, 1, 1, HEADER_BYTES))
    os.close(marker)
    replace_file(building / _HARD_STATE, msgspec.msgpack.encode(_StoredHardState(storage_id, HardState())))
    for path in building.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(building)
    building.rename(folder)
    sync_folder(folder.parent)


def _segment_name(number: int) -> str:
    return f"log-{number:012d}"


class RaftLog:
    """The ``Storage`` of one peer in a folder. Not thread-safe: one call at a time."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._storage_id = 0
        self._segments: dict[int, tuple[int, int]] = {}  # number -> lowest and highest index ever written into it
        self._number = 0
        self._file = -1
        self._offset = 0
        self._chain = 0
        self._marker_file = -1
        self._marker_generation = 0

    # Reading

    def load(self) -> Stored:
        """Read and check everything; cut a torn tail.

        Raises:
            LogDamaged: See the module's text.
            FileNotFoundError: There is no such folder.
        """
        if not self._folder.is_dir():
            raise FileNotFoundError(self._folder)
        stored = self._read(read_checked(self._folder / _HARD_STATE, _StoredHardState))
        # What was readable behind the marker may be in the page cache only: after this it is not.
        self.sync()
        self._drop_covered(stored.snapshot)
        return stored

    def _read(self, hard: _StoredHardState) -> Stored:
        self._storage_id = hard.storage_id
        snapshot = self._read_snapshot()
        self._marker_file = os.open(self._folder / _SYNCED, os.O_RDWR) if (self._folder / _SYNCED).exists() else -1
        marker = read_marker(self._marker_file) if self._marker_file >= 0 else None
        if marker is None or marker.storage_id != self._storage_id:
            raise LogDamaged(f"{self._folder}/{_SYNCED}: unreadable")
        self._marker_generation = marker.generation
        entries = self._read_segments(marker, snapshot)
        return Stored(self._storage_id, hard.hard_state, snapshot, tuple(entries))

    def _read_snapshot(self) -> Snapshot | None:
        newest: Snapshot | None = None
        for path in sorted(self._folder.glob("snapshot-*")):
            stored = read_checked(path, _StoredSnapshot)
            if stored.storage_id != self._storage_id:
                raise LogDamaged(f"{path}: of another disk")
            newest = stored.snapshot
        return newest

    def _read_segments(self, marker: SyncedMarker, snapshot: Snapshot | None) -> list[Entry]:
        numbers = sorted(int(path.name[4:]) for path in self._folder.glob("log-*"))
        if (
            not numbers
            or numbers != list(range(numbers[0], numbers[-1] + 1))
            or not numbers[0] <= marker.segment <= numbers[-1]
        ):
            raise LogDamaged(f"{self._folder}: log segments missing: have {numbers}, synced in {marker.segment}")
        entries: list[Entry] = []
        base = 0  # index before entries[0]
        chain: int | None = None
        for number in numbers:
            data = (self._folder / _segment_name(number)).read_bytes()
            header = decode_header(data)
            synced = marker.offset if number == marker.segment else len(data) if number < marker.segment else 0
            fits = header is not None and header.storage_id == self._storage_id and header.number == number
            if header is None or not fits or (chain is not None and header.chain != chain):
                if number <= marker.segment:
                    raise LogDamaged(f"{_segment_name(number)}: header damaged or out of sequence")
                self._cut_segments([later for later in numbers if later >= number])
                break
            if header.reset or chain is None:
                entries, base = [], header.base_index
            offset, chain = HEADER_BYTES, header.chain
            lowest = highest = 0
            for entry, end, crc in read_records(data, header.chain):
                if entry.index > base + len(entries) + 1:
                    raise LogDamaged(f"{_segment_name(number)}: index {entry.index} behind {base + len(entries)}")
                if entry.index <= base:  # replaces what a deleted segment held
                    entries, base = [], entry.index - 1
                del entries[entry.index - base - 1 :]
                entries.append(entry)
                offset, chain = end, crc
                lowest, highest = min(lowest or entry.index, entry.index), max(highest, entry.index)
            if offset < synced or len(data) < synced:
                raise LogDamaged(f"{_segment_name(number)}: unreadable at {offset}, was synced up to {synced}")
            self._segments[number] = (lowest, highest)
            self._open_segment(number, offset, chain, len(data))
            if offset < len(data):
                self._cut_segments([later for later in numbers if later > number])
                break
        return self._behind_snapshot(entries, base, snapshot)

    def _behind_snapshot(self, entries: list[Entry], base: int, snapshot: Snapshot | None) -> list[Entry]:
        index, term = (snapshot.index, snapshot.term) if snapshot else (0, 0)
        if base > index:
            raise LogDamaged(f"{self._folder}: log begins behind {base}, but the snapshot ends at {index}")
        if index == base:
            return entries
        at = index - base - 1
        if at < len(entries) and entries[at].term == term:
            return entries[at + 1 :]
        # A crash between the snapshot's rename and the reset of the log: finish what was begun.
        assert snapshot is not None
        self._start_segment(reset=True, base_index=index, base_term=term)
        return []

    def _cut_segments(self, numbers: list[int]) -> None:
        for number in numbers:
            (self._folder / _segment_name(number)).unlink()
        sync_folder(self._folder)

    def _open_segment(self, number: int, offset: int, chain: int, size: int) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self._folder / _segment_name(number), os.O_RDWR)
        if size > offset:
            os.ftruncate(self._file, offset)
        self._number, self._offset, self._chain = number, offset, chain

    # Writing

    def write(self, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        """Write; see ``Storage``."""
        if hard_state is not None:
            data = msgspec.msgpack.encode(_StoredHardState(self._storage_id, hard_state))
            replace_file(self._folder / _HARD_STATE, data)
        if not entries:
            return
        if self._offset >= self._segment_bytes:
            self.sync()
            before = entries[0].index - 1
            self._start_segment(reset=False, base_index=before, base_term=0)
        pieces: list[bytes] = []
        chain = self._chain
        for entry in entries:
            record, chain = encode_record(entry, chain)
            pieces.append(record)
        self._write_all(b"".join(pieces))
        self._chain = chain
        lowest, highest = self._segments[self._number]
        first = min(entry.index for entry in entries)
        self._segments[self._number] = (min(lowest or first, first), max(highest, *(e.index for e in entries)))

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file, view, self._offset)
            self._offset += written
            view = view[written:]

    def sync(self) -> None:
        """Sync the log, then the marker that says so."""
        os.fdatasync(self._file)
        self._marker_generation += 1
        write_marker(
            self._marker_file,
            SyncedMarker(self._storage_id, self._marker_generation, self._number, self._offset),
        )

    def _start_segment(self, *, reset: bool, base_index: int, base_term: int) -> None:
        number = self._number + 1
        path = self._folder / _segment_name(number)
        header = SegmentHeader(self._storage_id, number, base_index, base_term, reset, self._chain)
        with path.open("wb") as file:
            file.write(encode_header(header))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._folder)
        self._segments[number] = (0, 0)
        self._open_segment(number, HEADER_BYTES, self._chain, HEADER_BYTES)
        self.sync()

    # Snapshots

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Make an own snapshot durable, then delete what it covers."""
        self._write_snapshot(snapshot)
        self._drop_covered(snapshot)

    def install_snapshot(self, snapshot: Snapshot) -> None:
        """Make the leader's snapshot durable, then void the whole log."""
        self._write_snapshot(snapshot)
        self._start_segment(reset=True, base_index=snapshot.index, base_term=snapshot.term)
        self._drop_covered(snapshot, all_before=self._number)

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        path = self._folder / f"snapshot-{snapshot.index:020d}"
        replace_file(path, msgspec.msgpack.encode(_StoredSnapshot(self._storage_id, snapshot)))

    def _drop_covered(self, snapshot: Snapshot | None, all_before: int = 0) -> None:
        """Delete older snapshots and, from the oldest, segments that hold nothing behind the snapshot."""
        if snapshot is None:
            return
        for path in sorted(self._folder.glob("snapshot-*"))[:-1]:
            path.unlink()
        for number in sorted(self._segments):
            covered = self._segments[number][1] <= snapshot.index
            if number == self._number or not (number < all_before or covered):
                break
            (self._folder / _segment_name(number)).unlink()
            del self._segments[number]
        sync_folder(self._folder)

    def close(self) -> None:
        """Close the files."""
        for file in (self._file, self._marker_file):
            if file >= 0:
                os.close(file)
        self._file = self._marker_file = -1
