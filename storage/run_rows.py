"""Rows of a partition as rows of an SSTable: which typed columns a stored value fills.

An audit decodes no value, so what it needs stands in columns (``wire/sstable.py`` says which for what). Deadlines of
the served clock become UTC ms here: the one moment that both clocks are looked at. A value that cannot be decoded is
damage and raises; what is written out must be what it says. Source: docs/adr/0009-key-order-and-sstables.md.
"""

import struct
from collections.abc import Callable
from zlib import crc32

from storage import keys
from storage.rows import (
    NEVER,
    STATE_QUEUED,
    InflightRow,
    RetainedRow,
    SessionRow,
    WillRow,
    decode_entry,
    unpack,
)
from wire.sstable import Row, RowKind

__all__ = ["NOT_EXPORTED", "RowReader"]

NOT_EXPORTED = (keys.LOCAL, keys.LOG)  # about one copy, or a copy of what stands in other rows
OTHER, SESSION, SUBSCRIPTION, QUEUED, INFLIGHT_OUT, INFLIGHT_IN, WILL, RETAINED, ORIGIN_WATERMARK, BODY = map(
    int, RowKind
)
KINDS = {
    keys.BODY: BODY,
    keys.INBOUND: INFLIGHT_IN,
    keys.INFLIGHT: INFLIGHT_OUT,
    keys.ORIGIN: ORIGIN_WATERMARK,
    keys.QUEUE: QUEUED,
    keys.RETAINED: RETAINED,
    keys.SESSION: SESSION,
    keys.SUBSCRIPTION: SUBSCRIPTION,
    keys.WILL: WILL,
}
PER_SESSION = (keys.INBOUND, keys.INFLIGHT, keys.QUEUE, keys.SESSION, keys.SUBSCRIPTION)
_PAIR = struct.Struct(">QQ")  # session, session_seq
_NOTHING = (None,) * 9


class RowReader:
    """Turns stored rows of one partition into rows of a run.

    Args:
        partition: Its number.
        now_ms: UTC ms that stand for the served clock's ``served_ms``.
        served_ms: The served clock at that moment.
        session_row: Reads a session row that was not seen before the rows that name the session.
    """

    def __init__(
        self, partition: int, now_ms: int, served_ms: int, session_row: Callable[[int], SessionRow | None]
    ) -> None:
        self._partition = partition
        self._offset_ms = now_ms - served_ms
        self._session_row = session_row
        self._sessions: dict[int, tuple[str, int]] = {}  # number -> client ID, owner_epoch
        self._readers: dict[bytes, Callable[[bytes, bytes, int, int, int], Row]] = {
            keys.BODY: self._body,
            keys.INBOUND: self._inbound,
            keys.INFLIGHT: self._inflight,
            keys.ORIGIN: self._origin,
            keys.QUEUE: self._queued,
            keys.RETAINED: self._retained,
            keys.SESSION: self._session,
            keys.SUBSCRIPTION: self._subscription,
            keys.WILL: self._will,
        }

    def row(self, key: bytes, value: bytes, seq: int, epoch: int) -> Row:
        """Return the row of a run.

        Raises:
            msgspec.DecodeError, struct.error: The value is not what its key says.
        """
        crc = crc32(seq.to_bytes(8, "big"), crc32(value, crc32(key)))
        read = self._readers.get(key[2:3])
        if read is None:
            return (self._partition, None, OTHER, key, seq, value, False, 0, epoch, crc, *_NOTHING)
        return read(key, value, seq, epoch, crc)

    def tombstone(self, key: bytes, seq: int, epoch: int) -> Row:
        """Return the row that says that a key is gone, with what the key itself tells."""
        kind = key[2:3]
        crc = crc32(seq.to_bytes(8, "big"), crc32(key))
        number = int.from_bytes(key[3:11], "big")
        session = number if kind in PER_SESSION else None
        session_seq = int.from_bytes(key[11:19], "big") if kind in (keys.QUEUE, keys.INFLIGHT) else None
        identifier = int.from_bytes(key[11:13], "big") if kind == keys.INBOUND else None
        body = key[3:11] if kind == keys.BODY else None
        what = KINDS.get(kind, OTHER)
        head = (self._partition, None, what, key, seq, None, True, 0, epoch, crc)
        return (*head, session, session_seq, identifier, None, body, None, None, None, None)

    # --- per kind, in the order of COLUMNS

    def _wall(self, deadline: int) -> int:
        return 0 if deadline == NEVER else max(1, deadline + self._offset_ms)

    def _about(self, number: int) -> tuple[str, int]:
        found = self._sessions.get(number)
        if found is None:
            row = self._session_row(number)
            found = self._sessions[number] = (row.client_id, row.owner_epoch) if row is not None else ("", 0)
        return found

    def _body(self, key: bytes, value: bytes, seq: int, epoch: int, crc: int) -> Row:
        head = (self._partition, None, BODY, key, seq, value, False, 0, epoch, crc)
        return (*head, None, None, None, None, key[3:11], None, None, None, None)

    def _inbound(self, key: bytes, value: bytes, seq: int, epoch: int, crc: int) -> Row:
        number, identifier = int.from_bytes(key[3:11], "big"), int.from_bytes(key[11:13], "big")
        origin = f"1:{number:x}:{int.from_bytes(value[:8], 'big'):x}"
        head = (self._partition, None, INFLIGHT_IN, key, seq, value, False, 0, epoch, crc)
        return (*head, number, None, identifier, None, None, None, None, None, origin)

    def _inflight(self, key: bytes, value: bytes, seq: int, epoch: int, crc: int) -> Row:
        row = unpack(InflightRow, value)
        number, session_seq = _PAIR.unpack_from(key, 3)
        owner = self._about(number)[1]
        head = (self._partition, None, INFLIGHT_OUT, key, seq, value, False, 0, epoch, crc)
        return (*head, number, session_seq, row.packet_identifier, row.state, None, owner, None, None, None)

    def _origin(self, key: bytes, value: bytes, seq: int, epoch: int, crc: int) -> Row:
        origin = f"{key[3]}:{int.from_bytes(key[4:12], 'big'):x}"
        head = (self._partition, None, ORIGIN_WATERMARK, key, seq, value, False, 0, epoch, crc)
        return (*head, None, None, None, None, None, None, None, None, origin)

    def _queued(self, key: bytes, value: bytes, seq: int, epoch: int, crc: int) -> Row:
        number, session_seq = _PAIR.unpack_from(key, 3)
        entry = decode_entry(session_seq, value)
        state, deadline = entry.state, entry.deadline
        return (
            *(self._partition, None, QUEUED, key, seq, value, False, self._wall(deadline) if deadline else 0, epoch),
            *(crc, number, session_seq, None if state == STATE_QUEUED else entry.packet_identifier, state),
            entry.body.to_bytes(8, "big") if entry.body else None,
            *(None, None, None, f"{entry.origin_kind}:{entry.origin_a:x}:{entry.origin_b:x}"),
        )

    def _retained(self, key: bytes, value: bytes, seq: int, epoch: int, crc: int) -> Row:
        row = unpack(RetainedRow, value)
        body = row.body.to_bytes(8, "big") if row.body else None
        origin = f"{row.origin_kind}:{row.origin_a:x}:{row.origin_b:x}"
        head = (self._partition, None, RETAINED, key, seq, value, False, self._wall(row.deadline), epoch, crc)
        return (*head, None, None, None, None, body, None, None, None, origin)

    def _session(self, key: bytes, value: bytes, seq: int, epoch: int, crc: int) -> Row:
        number, row = int.from_bytes(key[3:11], "big"), unpack(SessionRow, value)
        client_id, owner = row.client_id, row.owner_epoch
        self._sessions[number] = (client_id, owner)
        expiry_ms = 0 if row.edge else self._wall(row.deadline)
        gaps = _expanded(row.gaps) if row.gaps else None
        head = (self._partition, client_id, SESSION, key, seq, value, False, expiry_ms, epoch, crc)
        return (*head, number, None, None, None, None, owner, row.head - 1, gaps, None)

    def _subscription(self, key: bytes, value: bytes, seq: int, epoch: int, crc: int) -> Row:
        number = int.from_bytes(key[3:11], "big")
        head = (self._partition, self._about(number)[0], SUBSCRIPTION, key, seq, value, False, 0, epoch, crc)
        return (*head, number, None, None, None, None, None, None, None, None)

    def _will(self, key: bytes, value: bytes, seq: int, epoch: int, crc: int) -> Row:
        row = unpack(WillRow, value)
        head = (self._partition, row.client_id, WILL, key, seq, value, False, 0, epoch, crc)
        return (*head, None, None, None, None, None, row.owner_epoch, None, None, None)


def _expanded(pairs: list[int]) -> list[int]:
    """Return every number of flat [start, stop) pairs."""
    return [number for start, stop in zip(pairs[::2], pairs[1::2], strict=True) for number in range(start, stop)]
