"""Format of a value in the store: one version byte, CRC-32 of key and value, the value.

lsm-db has no checksum on its pages, so a flipped bit would be returned as data. The key is part of the sum because a
flipped bit may also return a valid value under a wrong key. The writer interprets the value.
"""

import struct
from zlib import crc32

__all__ = [
    "RECORD_OVERHEAD_BYTES",
    "RECORD_VERSION",
    "RESERVED_PREFIX",
    "decode_record",
    "encode_record",
    "record_head",
]

RECORD_VERSION = 1
RECORD_OVERHEAD_BYTES = 5

# Keys of the store itself. Keys begin with a partition number (u16), and 65535 is never one: these sort last.
RESERVED_PREFIX = b"\xff\xff"

record_head = struct.Struct(">BI").pack  # version, CRC-32 of key || value: the bytes before the value
_VERSION_BYTE = bytes((RECORD_VERSION,))


def encode_record(key: bytes, value: bytes) -> bytes:
    """Return the stored record of a key's value."""
    return _VERSION_BYTE + crc32(value, crc32(key)).to_bytes(4, "big") + value


def decode_record(key: bytes, record: bytes) -> bytes | None:
    """Return the value, None if the record fails its check (None is never a stored value)."""
    value = record[RECORD_OVERHEAD_BYTES:]
    if record[:1] != _VERSION_BYTE or int.from_bytes(record[1:RECORD_OVERHEAD_BYTES], "big") != crc32(
        value, crc32(key)
    ):
        return None
    return value
