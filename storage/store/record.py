"""How a value stands in the store: one version byte, CRC-32 of key and value, the value.

lsm-db has no checksum on its pages, so a flipped bit would be served as data; the key is part of the sum because a
flipped bit may as well hand out the right value under a wrong key. What a value means is the writer's business.
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

# Keys of the store itself. Keys begin with a partition number (u16), and 65535 is none: these sort behind all others.
RESERVED_PREFIX = b"\xff\xff"

record_head = struct.Struct(">BI").pack  # version, CRC-32 of key || value: what stands before the value
_VERSION_BYTE = bytes((RECORD_VERSION,))


def encode_record(key: bytes, value: bytes) -> bytes:
    """Return what is stored under the key."""
    return _VERSION_BYTE + crc32(value, crc32(key)).to_bytes(4, "big") + value


def decode_record(key: bytes, record: bytes) -> bytes | None:
    """Return the value, None if the record fails its check (a store never holds None, so the answer is unambiguous)."""
    value = record[RECORD_OVERHEAD_BYTES:]
    if record[:1] != _VERSION_BYTE or int.from_bytes(record[1:RECORD_OVERHEAD_BYTES], "big") != crc32(
        value, crc32(key)
    ):
        return None
    return value
