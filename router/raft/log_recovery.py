"""Reading a Raft folder after any kind of stop: its entries, its torn tail, and the detection of damage.

Read-only: ``router/raft/log.py`` cuts the tail and continues writing, and describes the layout of the folder.
"""

import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from router.raft.events import HardState, Snapshot
from router.raft.files import SyncedMarker, read_checked, read_marker
from router.raft.messages import LogEntry
from router.raft.segment import HEADER_BYTES, SegmentHeader, decode_header, read_records
from router.raft.storage import LogDamaged

__all__ = [
    "HARD_STATE",
    "SYNCED",
    "RecoveredLog",
    "Segment",
    "StoredHardState",
    "StoredSnapshot",
    "read_folder",
    "segment_name",
    "snapshot_name",
]

HARD_STATE = "hard_state"
SYNCED = "synced"


class StoredHardState(msgspec.Struct, array_like=True, frozen=True):
    """Content of the file ``hard_state``."""

    storage_id: int
    hard_state: HardState


class StoredSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """Content of a file ``snapshot-<index>``."""

    storage_id: int
    snapshot: Snapshot


class Segment(NamedTuple):
    """A readable segment; indexes are 0 without a record."""

    number: int
    lowest_index: int  # of all records, replaced ones included
    highest_index: int
    end: int  # readable bytes
    chain: int


class RecoveredLog(NamedTuple):
    """Content of the folder. ``torn``: segments after the torn record. ``void``: the log ends before the snapshot."""

    stored_hard_state: StoredHardState
    snapshot: Snapshot | None
    entries: list[LogEntry]
    segments: list[Segment]
    torn: list[int]
    marker: SyncedMarker
    void: bool


def segment_name(number: int) -> str:
    """Return the file name of a segment."""
    return f"log-{number:012d}"


def snapshot_name(index: int) -> str:
    """Return the file name of a snapshot; names sort by index."""
    return f"snapshot-{index:020d}"


def read_folder(folder: Path) -> RecoveredLog:
    """Read and check the folder.

    Raises:
        LogDamaged: Synced data is missing or changed.
    """
    hard = read_checked(folder / HARD_STATE, StoredHardState)
    snapshot = _read_snapshot(folder, hard.storage_id)
    marker = _read_marker(folder, hard.storage_id)
    numbers = sorted(int(path.name[4:]) for path in folder.glob("log-*"))
    complete = bool(numbers) and numbers == list(range(numbers[0], numbers[-1] + 1))
    if not complete or not numbers[0] <= marker.segment <= numbers[-1]:
        raise LogDamaged(f"{folder}: log segments missing: have {numbers}, synced in {marker.segment}")
    reading = _Reading(folder, marker)
    for at, number in enumerate(numbers):
        if not reading.read(number):
            torn = numbers[at:] if number not in (s.number for s in reading.segments) else numbers[at + 1 :]
            break
    else:
        torn = []
    entries, void = _behind_snapshot(folder, reading.entries, reading.base, snapshot)
    return RecoveredLog(hard, snapshot, entries, reading.segments, torn, marker, void)


def _read_snapshot(folder: Path, storage_id: int) -> Snapshot | None:
    newest: Snapshot | None = None
    for path in sorted(folder.glob("snapshot-*")):
        stored = read_checked(path, StoredSnapshot)
        if stored.storage_id != storage_id:
            raise LogDamaged(f"{path}: of another disk")
        newest = stored.snapshot
    return newest


def _read_marker(folder: Path, storage_id: int) -> SyncedMarker:
    try:
        descriptor = os.open(folder / SYNCED, os.O_RDONLY)
    except FileNotFoundError:
        raise LogDamaged(f"{folder / SYNCED}: missing") from None
    try:
        marker = read_marker(descriptor)
    finally:
        os.close(descriptor)
    if marker is None or marker.storage_id != storage_id:
        raise LogDamaged(f"{folder / SYNCED}: unreadable or of another disk")
    return marker


class _Reading:
    """Segments in order, up to the first unreadable one."""

    def __init__(self, folder: Path, marker: SyncedMarker) -> None:
        self._folder = folder
        self._marker = marker
        self._chain: int | None = None
        self.entries: list[LogEntry] = []
        self.base = 0  # index before entries[0]
        self.segments: list[Segment] = []

    def read(self, number: int) -> bool:
        """Read a segment; False if its end, or all of it, is a torn tail."""
        data = (self._folder / segment_name(number)).read_bytes()
        header = self._checked_header(number, data)
        if header is None:
            return False
        if header.reset or self._chain is None:
            self.entries, self.base = [], header.base_index
        end, chain, lowest, highest = HEADER_BYTES, header.chain, 0, 0
        for entry, behind, crc in read_records(data, header.chain):
            self._take(number, entry)
            end, chain = behind, crc
            lowest, highest = min(lowest or entry.index, entry.index), max(highest, entry.index)
        synced = self._synced(number, len(data))
        if end < synced:
            raise LogDamaged(f"{segment_name(number)}: unreadable at {end}, was synced up to {synced}")
        self._chain = chain
        self.segments.append(Segment(number, lowest, highest, end, chain))
        return end == len(data)

    def _synced(self, number: int, length: int) -> int:
        if number == self._marker.segment:
            return self._marker.offset
        return length if number < self._marker.segment else 0

    def _checked_header(self, number: int, data: bytes) -> SegmentHeader | None:
        header = decode_header(data)
        fits = header is not None and header.storage_id == self._marker.storage_id and header.number == number
        if fits and header is not None and self._chain in (None, header.chain):
            return header
        if number <= self._marker.segment:
            raise LogDamaged(f"{segment_name(number)}: header damaged or out of sequence")
        return None

    def _take(self, number: int, entry: LogEntry) -> None:
        last = self.base + len(self.entries)
        if entry.index > last + 1:
            raise LogDamaged(f"{segment_name(number)}: index {entry.index} behind {last}")
        if entry.index <= self.base:  # replaces entries of a deleted segment
            self.entries, self.base = [], entry.index - 1
        del self.entries[entry.index - self.base - 1 :]
        self.entries.append(entry)


def _behind_snapshot(
    folder: Path, entries: list[LogEntry], base: int, snapshot: Snapshot | None
) -> tuple[list[LogEntry], bool]:
    index, term = (snapshot.index, snapshot.term) if snapshot else (0, 0)
    if base > index:
        raise LogDamaged(f"{folder}: log begins behind {base}, but the snapshot ends at {index}")
    if index == base:
        return entries, False
    at = index - base - 1
    if at < len(entries) and entries[at].term == term:
        return entries[at + 1 :], False
    return [], True  # a crash between an installed snapshot's rename and the reset of the log
