"""The write-ahead log of a store: one file of two regions, written alternately, and its recovery.

A region has the commits of one memtable, from its beginning on. Each commit is one record:

    u32 bytes of rows | u32 CRC-32 | u64 transaction_no | rows: (u16 key bytes, u32 value bytes, key, value) each

A deleted key has 0xFFFFFFFF value bytes and no value. The CRC covers transaction_no and rows, seeded with that of the
previous record. The first seed is the CRC of the log's label and the region's number. The data file has the label (16
random bytes, u32 bytes of a region). So remains of an earlier memtable or process are never read as later records. A
record is valid if all commits before it are in the data file or in the log.

Rows of a large commit, or of one that exceeds its region, are stored after both regions. Their record has one row
instead, with the key ``LARGE_KEY`` and their position: (u64 offset in the file, u32 bytes, u32 CRC-32). That space
belongs to the region's memtable, and is freed with it. Decisions: docs/adr/0079-a-log-of-our-own.md,
docs/adr/0210-room-for-large-commits.md.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from zlib import crc32

from conf.synced_folder import sync_folder
from storage.state.row_lists import octets_of
from storage.store.protocol import Batch
from storage.store.record import RESERVED_PREFIX

__all__ = ["REGION_BYTES", "LogRegion", "WriteAheadLog", "logged_commits", "size_of"]

REGION_BYTES = 32 * 1024 * 1024
REGIONS = 2
RANDOM_BYTES = 16
DELETED = 0xFFFFFFFF
_HEAD = struct.Struct(">IIQ")
_NUMBER = struct.Struct(">Q")
_ROW = struct.Struct(">HI")
_PLACE = struct.Struct(">QII")
LARGE_KEY = RESERVED_PREFIX + b"\x00large"  # reserved: never a row of a commit
PLACE_BYTES = _ROW.size + len(LARGE_KEY) + _PLACE.size
LARGE_BYTES = 1024 * 1024  # size from which rows are always stored after the regions

Rows = list[tuple[bytes, bytes | None]]


class LogRegion:
    """A region that is being written.

    Attributes:
        used: Bytes of its commits, including those after the regions.
    """

    def __init__(self, wal: "WriteAheadLog", index: int) -> None:
        self.index = index
        self.used = 0
        self.large: list[tuple[int, int]] = []  # (offset, end) of rows after the regions
        self._wal = wal
        self._bytes = _region_bytes(wal.label)
        self._end = 0
        self._chain = _chain(wal.label, index)

    @property
    def is_crowded(self) -> bool:
        """Whether less than a quarter is left: twice the largest commit, except one with a long last operation."""
        return self.used > self._bytes - self._bytes // 4

    def fills(self, size: int) -> float:
        """Return the fraction of the bytes left before it is crowded that ``size`` uses; 1 or more: all of it."""
        left = self._bytes - self._bytes // 4 - self.used
        return size / left if left > size else 1.0

    @property
    def is_full(self) -> bool:
        """Whether no commit fits, not even one with its rows elsewhere."""
        return self._end + _HEAD.size + PLACE_BYTES > self._bytes

    def append(self, transaction_no: int, size: int, pieces: Iterable[bytes]) -> None:
        """Write a commit; if this raises, it was not written, and the next one overwrites it.

        Args:
            transaction_no: Its number.
            size: Bytes of its rows.
            pieces: Its encoded rows, one by one, to avoid a copy of all of them in memory.
        """
        place = 0
        if size > LARGE_BYTES or self._end + _HEAD.size + size > self._bytes:
            place = at = self._wal.find_space(size)
            found = 0
            for piece in pieces:
                found = crc32(piece, found)
                self._wal.write(at, piece)
                at += len(piece)
            rows = _ROW.pack(len(LARGE_KEY), _PLACE.size) + LARGE_KEY + _PLACE.pack(place, size, found)
        else:
            rows = b"".join(pieces)
        chain = crc32(rows, crc32(_NUMBER.pack(transaction_no), self._chain))
        record = _HEAD.pack(len(rows), chain, transaction_no) + rows
        self._wal.write(self.index * self._bytes + self._end, record)
        if place:
            self.large.append((place, place + size))
        self._end += len(record)
        self.used += _HEAD.size + size
        self._chain = chain


class WriteAheadLog:
    """The open log of a store."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, under a new label. Raises OSError."""
        self.label = os.urandom(RANDOM_BYTES) + REGION_BYTES.to_bytes(4, "big")
        self._regions: dict[int, LogRegion] = {}
        is_there = path.exists()
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not is_there:
            sync_folder(path.parent)

    def region(self, index: int) -> LogRegion:
        """Begin to write a region; the rows of its commits are in the data file."""
        region = self._regions[index] = LogRegion(self, index)
        return region

    def find_space(self, size: int) -> int:
        """Return the first offset after the regions with that many bytes unused by both memtables."""
        place = REGIONS * _region_bytes(self.label)
        for begin, end in sorted(large for region in self._regions.values() for large in region.large):
            if begin - place >= size:
                break
            place = max(place, end)
        return place

    def write(self, at: int, data: bytes) -> None:
        """Write bytes at an offset of the file. Raises OSError."""
        written = 0
        while written < len(data):
            written += os.pwrite(self.descriptor, memoryview(data)[written:] if written else data, at + written)

    def close(self) -> None:
        """Release the file, without a sync."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def size_of(rows: Batch) -> int:
    """Return the encoded size of rows."""
    return octets_of(rows) + _ROW.size * len(rows)


def logged_commits(path: Path, label: bytes, head: int) -> Iterator[tuple[int, Rows]]:
    """Yield (transaction_no, rows) of the commits after ``head``, in order, while they are complete."""
    if not path.exists():
        return
    data, region_bytes = path.read_bytes(), _region_bytes(label)
    commits: dict[int, bytes] = {}
    for index in range(REGIONS):
        commits.update(_region_commits(data[index * region_bytes : (index + 1) * region_bytes], label, index))
    while (octets := commits.get(head + 1)) is not None:
        rows = _rows(octets)
        if rows and rows[0][0] == LARGE_KEY:
            place, size, found = _PLACE.unpack(rows[0][1] or b"")
            octets = data[place : place + size]
            if len(octets) < size or crc32(octets) != found:
                return
            rows = _rows(octets)
        head += 1
        yield head, rows


def _region_bytes(label: bytes) -> int:
    return int.from_bytes(label[RANDOM_BYTES:], "big")


def _chain(label: bytes, index: int) -> int:
    return crc32(bytes([index]), crc32(label))


def _region_commits(data: bytes, label: bytes, index: int) -> Iterator[tuple[int, bytes]]:
    at, chain = 0, _chain(label, index)
    while at + _HEAD.size <= len(data):
        size, found, transaction_no = _HEAD.unpack_from(data, at)
        rows = data[at + _HEAD.size : at + _HEAD.size + size]
        chain = crc32(rows, crc32(_NUMBER.pack(transaction_no), chain))
        if len(rows) < size or found != chain:
            return
        yield transaction_no, rows
        at += _HEAD.size + size


def _rows(data: bytes) -> Rows:
    rows: Rows = []
    at = 0
    while at < len(data):
        key_bytes, value_bytes = _ROW.unpack_from(data, at)
        at += _ROW.size
        key = data[at : at + key_bytes]
        at += key_bytes
        if value_bytes == DELETED:
            rows.append((key, None))
        else:
            rows.append((key, data[at : at + value_bytes]))
            at += value_bytes
    return rows
