"""Converts rows of a partition to rows of an SSTable, with their typed columns.

An audit decodes no value, so the data that it needs is in columns (``wire/sstable/schema.py`` lists them). Deadlines
of the served clock become UTC ms here, the only place that uses both clocks. A value that cannot be decoded is damage
and raises an error. Source: docs/adr/0009-key-order-and-sstables.md.
"""

import struct
from collections.abc import Callable, Sequence
from zlib import crc32

from storage.state import keys
from storage.state.rows import (
    ENTRY_HEAD,
    NEVER,
    STATE_QUEUED,
    InflightRow,
    RetainedRow,
    SessionRow,
    WillRow,
    unpack,
)
from wire.sstable.schema import Row, RowKind

__all__ = ["NOT_EXPORTED", "RowReader"]

NOT_EXPORTED = (keys.LOCAL, keys.LOG)  # about one copy only, or a copy of other rows
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
    """Converts stored rows of one partition to rows of a run.

    Args:
        partition: Its number.
        now_ms: UTC ms that correspond to ``served_ms``.
        served_ms: The served clock at that time.
        session_row: Reads a session row that was not converted before its session's other rows.
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
            keys.RETAINED: self._retained,
            keys.SESSION: self._session,
            keys.SUBSCRIPTION: self._subscription,
            keys.WILL: self._will,
        }

    def row(self, key: bytes, value: bytes, seq: int, epoch: int) -> Row:
        """Return the row of a run.

        Raises:
            msgspec.DecodeError, struct.error: The value does not match its key's kind.
        """
        return self.rows(((key, value),), seq, epoch)[0]

    def rows(self, found: Sequence[tuple[bytes, bytes]], seq: int, epoch: int) -> list[Row]:
        """Return the rows of stored (key, value), all of one operation, in their order.

        Queued messages, most rows of a store, are inlined: two calls per row are a third of a row's cost.

        Raises:
            msgspec.DecodeError, struct.error: A value does not match its key's kind.
        """
        partition, offset_ms, tail, readers = self._partition, self._offset_ms, seq.to_bytes(8, "big"), self._readers
        queue, ids, head = keys.QUEUE, _PAIR.unpack_from, ENTRY_HEAD.unpack_from
        rows: list[Row] = []
        for key, value in found:
            crc = crc32(key + value + tail)  # one call: joining some 100 bytes costs less than two more
            what = key[2:3]
            if what == queue:
                number, session_seq = ids(key, 3)
                _, state, identifier, deadline, kind, origin_a, origin_b, body, _, _ = head(value)
                rows.append((
                    partition, None, QUEUED, key, seq, value, False,
                    max(1, deadline + offset_ms) if deadline and deadline != NEVER else 0,
                    epoch, crc, number, session_seq, identifier if state != STATE_QUEUED else None, state,
                    body.to_bytes(8, "big") if body else None, None, None, None,
                    f"{kind}:{origin_a:x}:{origin_b:x}",
                ))  # fmt: skip
            elif (read := readers.get(what)) is not None:
                rows.append(read(key, value, seq, epoch, crc))
            else:
                rows.append((partition, None, OTHER, key, seq, value, False, 0, epoch, crc, *_NOTHING))
        return rows

    def tombstone(self, key: bytes, seq: int, epoch: int) -> Row:
        """Return the tombstone of a key, with the columns that the key itself provides."""
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
        return (
            self._partition, client_id, SESSION, key, seq, value, False, expiry_ms, epoch, crc, number,
            None, None, None, None, owner, row.head - 1, gaps, None,
        )  # fmt: skip

    def _subscription(self, key: bytes, value: bytes, seq: int, epoch: int, crc: int) -> Row:
        number = int.from_bytes(key[3:11], "big")
        return (
            self._partition, self._about(number)[0], SUBSCRIPTION, key, seq, value, False, 0, epoch, crc, number,
            None, None, None, None, None, None, None, None,
        )  # fmt: skip

    def _will(self, key: bytes, value: bytes, seq: int, epoch: int, crc: int) -> Row:
        row = unpack(WillRow, value)
        head = (self._partition, row.client_id, WILL, key, seq, value, False, 0, epoch, crc)
        return (*head, None, None, None, None, None, row.owner_epoch, None, None, None)


def _expanded(pairs: list[int]) -> list[int]:
    """Return every number of flat [start, stop) pairs."""
    return [number for start, stop in zip(pairs[::2], pairs[1::2], strict=True) for number in range(start, stop)]
