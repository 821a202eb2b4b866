"""The write-ahead log of a store: one file of two regions, written in turn, and how it is read after a crash.

A region holds the commits of one generation, from its beginning on. Each commit is one record:

    u32 bytes of rows | u32 CRC-32 | u64 transaction_no | rows: (u16 key bytes, u32 value bytes, key, value) each

A deleted key has 0xFFFFFFFF value bytes and no value. The CRC is of transaction_no and rows, begun with that of the
record before; the first one's begins with the CRC of the log's label, which the data file knows (16 random bytes, u32
bytes of a region), and the region's number. So nothing that an earlier generation, or an earlier process, left behind
is taken for what follows. A record counts if all commits before it are in the data file or in the log.
Decision: docs/adr/0079-a-log-of-our-own.md.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from conf.synced_folder import sync_folder

__all__ = ["REGION_BYTES", "LogRegion", "WriteAhead", "logged_commits"]

REGION_BYTES = 32 * 1024 * 1024
REGIONS = 2
RANDOM_BYTES = 16
DELETED = 0xFFFFFFFF
_HEAD = struct.Struct(">IIQ")
_NUMBER = struct.Struct(">Q")
_ROW = struct.Struct(">HI")

Rows = list[tuple[bytes, bytes | None]]


class LogRegion:
    """A region that is being written."""

    def __init__(self, descriptor: int, label: bytes, index: int) -> None:
        self.index = index
        self.used = 0
        self._bytes = _region_bytes(label)
        self._descriptor = descriptor
        self._chain = _chain(label, index)

    @property
    def is_crowded(self) -> bool:
        """Whether less than a quarter is left: twice the largest commit, but for one whose last operation is long."""
        return self.used > self._bytes - self._bytes // 4

    def fills(self, size: int) -> float:
        """Return which part of what is left before it is crowded so many bytes take; 1 or more: all of it."""
        left = self._bytes - self._bytes // 4 - self.used
        return size / left if left > size else 1.0

    def has_room(self, rows: bytes) -> bool:
        """Whether a commit with these rows fits."""
        return self.used + _HEAD.size + len(rows) <= self._bytes

    def append(self, transaction_no: int, rows: bytes) -> None:
        """Write a commit; if that raises OSError, it was not, and the next one takes its place."""
        chain = crc32(rows, crc32(_NUMBER.pack(transaction_no), self._chain))
        record = _HEAD.pack(len(rows), chain, transaction_no) + rows
        at = self.index * self._bytes + self.used
        written = 0
        while written < len(record):
            written += os.pwrite(self._descriptor, record[written:] if written else record, at + written)
        self.used += len(record)
        self._chain = chain


class WriteAhead:
    """The open log of a store."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, under a new label. Raises OSError."""
        self.label = os.urandom(RANDOM_BYTES) + REGION_BYTES.to_bytes(4, "big")
        is_there = path.exists()
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not is_there:
            sync_folder(path.parent)

    def region(self, index: int) -> LogRegion:
        """Begin to write a region, all of whose commits stand in the data file."""
        return LogRegion(self.descriptor, self.label, index)

    def close(self) -> None:
        """Release the file, without a sync."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def logged_commits(path: Path, label: bytes, head: int) -> Iterator[tuple[int, Rows]]:
    """Yield (transaction_no, rows) of the commits that follow one, in order, as far as they are whole."""
    if not path.exists():
        return
    data, region_bytes = path.read_bytes(), _region_bytes(label)
    commits: dict[int, bytes] = {}
    for index in range(REGIONS):
        commits.update(_region_commits(data[index * region_bytes : (index + 1) * region_bytes], label, index))
    while (rows := commits.get(head + 1)) is not None:
        head += 1
        yield head, _rows(rows)


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
