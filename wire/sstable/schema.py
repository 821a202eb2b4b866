"""The schema of an SSTable: columns, row kinds, the CRC of a row and the digest of a run.

An SSTable is a Parquet file with the newest version of each key of one partition, in unsigned bytewise key order. The
storage tier writes them, the jobs merge and audit them, and any Parquet reader can open them. This file decides the
columns and the contents of each row kind. Runs are written by ``wire/sstable/writer.py`` and read by
``wire/sstable/run_reader.py``; ``wire/sstable/manifest.py`` lists them. pyarrow is imported by ``arrow_schema``, not
before. Format: docs/jobs.md.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from functools import cache
from typing import Any

__all__ = [
    "COLUMNS",
    "COLUMN_INDEX",
    "EntryState",
    "Row",
    "RowKind",
    "arrow_schema",
    "digest_of",
    "make_row",
    "pack_owner_epoch",
    "row_crc",
]

Row = tuple[Any, ...]  # one value per column, in the order of COLUMNS

_U64 = (1 << 64) - 1


class RowKind(IntEnum):
    """Kind of a row, and the typed columns that it fills so that an audit needs to decode no value.

    Every row has partition, kind, key, seq, tombstone, expiry_ms (0: never), epoch and crc. A tombstone has no value,
    and carries the typed columns that its key determines (session_id, session_seq, packet_identifier, body_id).
    """

    OTHER = 0  # op log, markers
    SESSION = 1  # client_id, session_id, owner_epoch, acked_up_to, acked_gaps; expiry_ms of the session, 0 connected
    SUBSCRIPTION = 2  # client_id, session_id
    QUEUED = 3  # session_id, session_seq, packet_identifier once given, state, body_id if stored apart, origin
    INFLIGHT_OUT = 4  # session_id, session_seq, packet_identifier, state, owner_epoch
    INFLIGHT_IN = 5  # QoS 2 from the client: session_id, packet_identifier, origin
    WILL = 6  # client_id, session_id (null for an ephemeral client), owner_epoch, body_id if stored apart
    RETAINED = 7  # body_id if stored apart, origin
    ORIGIN_WATERMARK = 8  # origin: the sender's part of it
    BODY = 9  # body_id; one row per piece


class EntryState(IntEnum):
    """``state`` of QUEUED and INFLIGHT_OUT rows (MQTT 5.0 section 4.3)."""

    QUEUED = 0  # no packet identifier yet
    SENT = 1  # PUBLISH handed to the edge; PUBACK or PUBREC outstanding
    RECEIVED = 2  # PUBREC committed, PUBREL sent; PUBCOMP outstanding; the body is not needed any more


# name, type, nullable. acked_up_to: every entry of the session with session_seq <= it is finished: PUBACK or PUBCOMP
# committed, expired, or dropped by a policy; acked_gaps: further session_seq, all above acked_up_to, finished too.
# A compaction removes finished entries, and the audit reports an entry that is neither here nor finished as lost.
COLUMNS: tuple[tuple[str, str, bool], ...] = (
    ("partition", "int32", False),
    ("client_id", "string", True),
    ("kind", "int8", False),
    ("key", "binary", False),
    ("seq", "int64", False),  # the partition's op_index that wrote this version
    ("value", "binary", True),
    ("tombstone", "bool", False),
    ("expiry_ms", "int64", False),  # UTC ms since 1970; 0 = never
    ("epoch", "int32", False),  # partition_epoch of the operation
    ("crc", "int64", False),  # row_crc()
    ("session_id", "int64", True),
    ("session_seq", "int64", True),
    ("packet_identifier", "int32", True),
    ("state", "int8", True),
    ("body_id", "binary", True),
    ("owner_epoch", "int64", True),  # pack_owner_epoch()
    ("acked_up_to", "int64", True),
    ("acked_gaps", "list<int64>", True),
    ("origin", "string", True),
)
COLUMN_INDEX: dict[str, int] = {name: i for i, (name, _, _) in enumerate(COLUMNS)}


def row_crc(key: bytes, value: bytes | None, seq: int) -> int:
    """Return CRC-32 (ISO-HDLC, zlib) over key || value || seq as 8 bytes big-endian; no value counts as empty."""
    crc = zlib.crc32(key)
    if value:
        crc = zlib.crc32(value, crc)
    return zlib.crc32(seq.to_bytes(8, "big"), crc)


def pack_owner_epoch(partition_epoch: int, counter: int) -> int:
    """Return (partition_epoch, counter) as one int64 that orders the same way."""
    return partition_epoch << 32 | counter


def make_row(
    partition: int,
    kind: int,
    key: bytes,
    seq: int,
    value: bytes | None = None,
    *,
    client_id: str | None = None,
    tombstone: bool = False,
    expiry_ms: int = 0,
    epoch: int = 0,
    crc: int | None = None,
    session_id: int | None = None,
    session_seq: int | None = None,
    packet_identifier: int | None = None,
    state: int | None = None,
    body_id: bytes | None = None,
    owner_epoch: int | None = None,
    acked_up_to: int | None = None,
    acked_gaps: list[int] | None = None,
    origin: str | None = None,
) -> Row:
    """Return a row in the order of COLUMNS; crc is computed unless given.

    Pass the stored crc of a record that failed its check: the bad row must stay detectable.
    """
    if crc is None:
        crc = row_crc(key, value, seq)
    return (
        *(partition, client_id, kind, key, seq, value, tombstone, expiry_ms, epoch, crc),
        *(session_id, session_seq, packet_identifier, state, body_id, owner_epoch),
        *(acked_up_to, acked_gaps, origin),
    )


def digest_of(crc_sum: int, seq_xor: int) -> str:
    """Return the order-free digest of a run: sum of crc and xor of seq, both as 16 hex digits.

    Any tool can recompute it: ``sum(crc)`` and ``bit_xor(seq)`` in Spark and DuckDB.
    """
    return f"{crc_sum & _U64:016x}{seq_xor & _U64:016x}"


@cache
def arrow_schema() -> Any:
    """Return the pyarrow schema of an SSTable."""
    import pyarrow as pa

    types = {
        "int8": pa.int8(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "bool": pa.bool_(),
        "string": pa.string(),
        "binary": pa.binary(),
        "list<int64>": pa.list_(pa.field("element", pa.int64())),
    }
    return pa.schema([pa.field(name, types[type_name], nullable) for name, type_name, nullable in COLUMNS])
