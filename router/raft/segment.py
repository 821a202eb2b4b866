"""The bytes of a log segment: header, records, and their readable range.

Each record has its length, index, term and kind, and a CRC-32 over all of it, seeded with the CRC of the previous
record: a flipped bit, a lost or a stale record breaks the chain. ``router/raft/log.py`` knows the synced range, and
decides whether an unreadable end is a torn tail or damage.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from router.raft.messages import CONFIG, NOOP, NORMAL, EntryKind, LogEntry

__all__ = ["HEADER_BYTES", "SegmentHeader", "decode_header", "encode_header", "encode_record", "read_records"]

_MAGIC = b"SMQRAFT1"
# magic, storage id, segment number, base index, base term, reset, initial CRC of the chain; then the header's CRC
_HEADER = struct.Struct("<8sQQQQBI")
HEADER_BYTES = _HEADER.size + 4
_RECORD = struct.Struct("<IIQQB")  # CRC, payload bytes, index, term, kind
_CHECKED = struct.Struct("<IQQB")  # part before the payload that the CRC covers
MAX_RECORD_BYTES = 1 << 30
_KINDS: tuple[EntryKind, ...] = (NORMAL, CONFIG, NOOP)


class SegmentHeader(NamedTuple):
    """``reset``: the log before this segment is void; it continues after the snapshot at (base_index, base_term)."""

    storage_id: int
    number: int
    base_index: int
    base_term: int
    reset: bool
    chain: int


def encode_header(header: SegmentHeader) -> bytes:
    """Return the header's bytes."""
    packed = _HEADER.pack(_MAGIC, *header)
    return packed + crc32(packed).to_bytes(4, "little")


def decode_header(data: bytes) -> SegmentHeader | None:
    """Return the header, or None if it is torn or damaged."""
    if len(data) < HEADER_BYTES:
        return None
    packed = data[: _HEADER.size]
    if crc32(packed) != int.from_bytes(data[_HEADER.size : HEADER_BYTES], "little"):
        return None
    magic, storage_id, number, base_index, base_term, reset, chain = _HEADER.unpack(packed)
    if magic != _MAGIC:
        return None
    return SegmentHeader(storage_id, number, base_index, base_term, bool(reset), chain)


def encode_record(entry: LogEntry, chain: int) -> tuple[bytes, int]:
    """Return the record's bytes and the CRC that seeds the next record."""
    kind = _KINDS.index(entry.kind)
    checked = _CHECKED.pack(len(entry.data), entry.index, entry.term, kind)
    crc = crc32(entry.data, crc32(checked, chain))
    return crc.to_bytes(4, "little") + checked + entry.data, crc


def read_records(data: bytes, chain: int) -> Iterator[tuple[LogEntry, int, int]]:
    """Yield (entry, offset after it, chain) from the header's end until the first unreadable record."""
    offset = HEADER_BYTES
    while offset + _RECORD.size <= len(data):
        crc, length, index, term, kind = _RECORD.unpack_from(data, offset)
        end = offset + _RECORD.size + length
        if length > MAX_RECORD_BYTES or end > len(data):
            return
        if crc32(data[offset + 4 : end], chain) != crc or kind >= len(_KINDS):
            return
        yield LogEntry(index, term, _KINDS[kind], data[offset + _RECORD.size : end]), end, crc
        offset, chain = end, crc
