"""Rows of a partition as rows of an SSTable: which typed columns a stored value fills.

An audit decodes no value, so what it needs stands in columns (``wire/sstable.py`` says which for what). Deadlines of
the served clock become UTC ms here: the one moment that both clocks are looked at. A value that cannot be decoded is
damage and raises; what is written out must be what it says. Source: docs/adr/0009-key-order-and-sstables.md.
"""

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

__all__ = ["NOT_EXPORTED", "RowReader", "origin_text"]

NOT_EXPORTED = (keys.LOCAL, keys.LOG)  # about one copy, or a copy of what stands in other rows
KINDS = {
    keys.BODY: RowKind.BODY,
    keys.INBOUND: RowKind.INFLIGHT_IN,
    keys.INFLIGHT: RowKind.INFLIGHT_OUT,
    keys.ORIGIN: RowKind.ORIGIN_WATERMARK,
    keys.QUEUE: RowKind.QUEUED,
    keys.RETAINED: RowKind.RETAINED,
    keys.SESSION: RowKind.SESSION,
    keys.SUBSCRIPTION: RowKind.SUBSCRIPTION,
    keys.WILL: RowKind.WILL,
}
PER_SESSION = (keys.INBOUND, keys.INFLIGHT, keys.QUEUE, keys.SESSION, keys.SUBSCRIPTION)
_NOTHING = (None,) * 9


def origin_text(kind: int, sender: int, counter: int | None = None) -> str:
    """Return an origin as it stands in a column; without its counter, the sender's part of it."""
    return f"{kind}:{sender:x}" if counter is None else f"{kind}:{sender:x}:{counter:x}"


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
        self._readers: dict[bytes, Callable[[bytes, bytes], tuple[object, ...]]] = {
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
        kind = key[2:3]
        read = self._readers.get(kind)
        crc = crc32(seq.to_bytes(8, "big"), crc32(value, crc32(key)))
        if read is None:
            return (self._partition, None, RowKind.OTHER.value, key, seq, value, False, 0, epoch, crc, *_NOTHING)
        client_id, expiry_ms, *typed = read(key, value)
        return (self._partition, client_id, KINDS[kind].value, key, seq, value, False, expiry_ms, epoch, crc, *typed)

    def tombstone(self, key: bytes, seq: int, epoch: int) -> Row:
        """Return the row that says that a key is gone, with what the key itself tells."""
        kind = key[2:3]
        crc = crc32(seq.to_bytes(8, "big"), crc32(key))
        number = int.from_bytes(key[3:11], "big")
        session = number if kind in PER_SESSION else None
        session_seq = int.from_bytes(key[11:19], "big") if kind in (keys.QUEUE, keys.INFLIGHT) else None
        identifier = int.from_bytes(key[11:13], "big") if kind == keys.INBOUND else None
        body = key[3:11] if kind == keys.BODY else None
        what = KINDS.get(kind, RowKind.OTHER).value
        head = (self._partition, None, what, key, seq, None, True, 0, epoch, crc)
        return (*head, session, session_seq, identifier, None, body, None, None, None, None)

    # --- per kind: client_id, expiry_ms, then session_id and every column behind it

    def _wall(self, deadline: int) -> int:
        return 0 if deadline == NEVER else max(1, deadline + self._offset_ms)

    def _about(self, number: int) -> tuple[str, int]:
        found = self._sessions.get(number)
        if found is None:
            row = self._session_row(number)
            found = self._sessions[number] = (row.client_id, row.owner_epoch) if row is not None else ("", 0)
        return found

    def _body(self, key: bytes, _value: bytes) -> tuple[object, ...]:
        return (None, 0, None, None, None, None, key[3:11], None, None, None, None)

    def _inbound(self, key: bytes, value: bytes) -> tuple[object, ...]:
        number, identifier = int.from_bytes(key[3:11], "big"), int.from_bytes(key[11:13], "big")
        origin = origin_text(1, number, int.from_bytes(value, "big"))
        return (None, 0, number, None, identifier, None, None, None, None, None, origin)

    def _inflight(self, key: bytes, value: bytes) -> tuple[object, ...]:
        number, row = int.from_bytes(key[3:11], "big"), unpack(InflightRow, value)
        owner = self._about(number)[1]
        seq = int.from_bytes(key[11:19], "big")
        return (None, 0, number, seq, row.packet_identifier, row.state, None, owner, None, None, None)

    def _origin(self, key: bytes, _value: bytes) -> tuple[object, ...]:
        sender = origin_text(key[3], int.from_bytes(key[4:12], "big"))
        return (None, 0, None, None, None, None, None, None, None, None, sender)

    def _queued(self, key: bytes, value: bytes) -> tuple[object, ...]:
        number, seq = int.from_bytes(key[3:11], "big"), int.from_bytes(key[11:19], "big")
        entry = decode_entry(seq, value)
        identifier = None if entry.state == STATE_QUEUED else entry.packet_identifier
        body = entry.body.to_bytes(8, "big") if entry.body else None
        origin = origin_text(entry.origin_kind, entry.origin_a, entry.origin_b)
        expiry_ms = self._wall(entry.deadline)
        return (None, expiry_ms, number, seq, identifier, entry.state, body, None, None, None, origin)

    def _retained(self, _key: bytes, value: bytes) -> tuple[object, ...]:
        row = unpack(RetainedRow, value)
        body = row.body.to_bytes(8, "big") if row.body else None
        origin = origin_text(row.origin_kind, row.origin_a, row.origin_b)
        return (None, self._wall(row.deadline), None, None, None, None, body, None, None, None, origin)

    def _session(self, key: bytes, value: bytes) -> tuple[object, ...]:
        number, row = int.from_bytes(key[3:11], "big"), unpack(SessionRow, value)
        self._sessions[number] = (row.client_id, row.owner_epoch)
        expiry_ms = 0 if row.edge else self._wall(row.deadline)
        starts, stops = row.gaps[::2], row.gaps[1::2]
        gaps = [seq for start, stop in zip(starts, stops, strict=True) for seq in range(start, stop)] or None
        done = row.head - 1
        return (row.client_id, expiry_ms, number, None, None, None, None, row.owner_epoch, done, gaps, None)

    def _subscription(self, key: bytes, _value: bytes) -> tuple[object, ...]:
        number = int.from_bytes(key[3:11], "big")
        return (self._about(number)[0], 0, number, None, None, None, None, None, None, None, None)

    def _will(self, _key: bytes, value: bytes) -> tuple[object, ...]:
        row = unpack(WillRow, value)
        return (row.client_id, 0, None, None, None, None, None, row.owner_epoch, None, None, None)
