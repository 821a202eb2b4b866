"""Message bodies, kept once however many queues refer to them.

A body of at most 256 B stands in the row that needs it; a larger one is stored once under its id, in pieces of at most
256 KiB, and rows hold a reference. Reference counts live in memory and are rebuilt from the references found at start:
a count on disk would be one more row per delivery, and one that could be wrong. Which rows refer to a body, and under
which prefix a partition keeps its bodies, is the caller's decision.

A reference: one byte for the form, then the body itself, or its length (u32) and id (u64). The key of a piece: prefix,
id (u64), number (u16).
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from storage.store_errors import StoreError
from storage.store_protocol import KeyValueStore, prefix_stop

__all__ = ["INLINE_BYTES_MAX", "PIECE_BYTES_MAX", "Bodies", "BodyMissing", "BodyReference"]

INLINE_BYTES_MAX = 256  # below this, a second row costs more than repeating the bytes in every queue
PIECE_BYTES_MAX = 256 * 1024  # a larger value would stall the merges of the store

_INLINE = b"\x00"
_STORED = b"\x01"
_STORED_LAYOUT = struct.Struct(">cIQ")  # form, length, body id
_BODY_ID_BYTES = 8

_Writes = list[tuple[bytes, bytes | None]]


class BodyMissing(StoreError):
    """A row refers to a body that the store does not hold whole: damage, to be repaired from a replica."""

    def __init__(self, body_id: int, piece: int) -> None:
        super().__init__(f"body {body_id} lacks piece {piece}")
        self.body_id = body_id
        self.piece = piece


@dataclass(frozen=True, slots=True)
class BodyReference:
    """What a row holds of a body: the bytes themselves, or where they are."""

    inline: bytes | None
    body_id: int
    length: int  # bytes

    def encode(self) -> bytes:
        """Return the field of a row; ``decode`` reads it back."""
        if self.inline is not None:
            return _INLINE + self.inline
        return _STORED_LAYOUT.pack(_STORED, self.length, self.body_id)

    @classmethod
    def decode(cls, field: bytes) -> "BodyReference":
        """Read the field of a row.

        Raises:
            ValueError: The field is neither form.
        """
        if field[:1] == _INLINE:
            return cls(field[1:], 0, len(field) - 1)
        if field[:1] != _STORED or len(field) != _STORED_LAYOUT.size:
            raise ValueError(f"not a body reference: {field[:32].hex()}")
        _, length, body_id = _STORED_LAYOUT.unpack(field)
        return cls(None, body_id, length)


class Bodies:
    """The bodies below one key prefix, with the number of rows that refer to each."""

    def __init__(self, store: KeyValueStore, prefix: bytes) -> None:
        self._store = store
        self._prefix = prefix
        self._references: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._references)

    def references(self, body_id: int) -> int:
        """Return how many rows refer to a body."""
        return self._references.get(body_id, 0)

    def put_body(self, body_id: int, data: bytes) -> tuple[BodyReference, _Writes]:
        """Return the reference for rows, and the writes that belong into the same transaction as the first of them.

        The writes are empty for an inline body and for one that is referred to already. Call ``refer`` once per row.
        """
        if len(data) <= INLINE_BYTES_MAX:
            return BodyReference(data, 0, len(data)), []
        reference = BodyReference(None, body_id, len(data))
        if body_id in self._references:
            return reference, []
        pieces = [data[at : at + PIECE_BYTES_MAX] for at in range(0, len(data), PIECE_BYTES_MAX)]
        return reference, [(self._key(body_id, number), piece) for number, piece in enumerate(pieces)]

    def get_body(self, reference: BodyReference) -> bytes:
        """Return the body, read from the store unless it is inline.

        Raises:
            BodyMissing: A piece is absent or has another length than the reference says.
            StoreDamaged: A piece fails its check.
        """
        if reference.inline is not None:
            return reference.inline
        pieces = []
        for number, length in enumerate(_piece_lengths(reference.length)):
            piece = self._store.get(self._key(reference.body_id, number))
            if piece is None or len(piece) != length:
                raise BodyMissing(reference.body_id, number)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def refer(self, reference: BodyReference, rows: int = 1) -> None:
        """Count rows that now refer to a body; at start, call it for each row that is read."""
        if reference.inline is None:
            self._references[reference.body_id] = self._references.get(reference.body_id, 0) + rows

    def release(self, reference: BodyReference, rows: int = 1) -> _Writes:
        """Count rows that no longer refer to a body, and return the deletes that belong into their transaction."""
        if reference.inline is not None:
            return []
        left = self._references.get(reference.body_id, 0) - rows
        if left < 0:
            raise ValueError(f"body {reference.body_id} is released more often than referred to")
        if left > 0:
            self._references[reference.body_id] = left
            return []
        del self._references[reference.body_id]
        pieces = range(len(_piece_lengths(reference.length)))
        return [(self._key(reference.body_id, number), None) for number in pieces]

    def rebuild(self, references: Iterable[BodyReference]) -> None:
        """Count anew from all references in the rows, as at start."""
        self._references.clear()
        for reference in references:
            self.refer(reference)

    def orphans(self, slice_rows: int = 256) -> Iterator[_Writes]:
        """Yield deletes of pieces that no row refers to, a slice at a time.

        A body and its first row are written in one transaction, so there are none unless rows were lost to damage or
        dropped by hand. Write each slice before taking the next.
        """
        start, stop = self._prefix, prefix_stop(self._prefix)
        while rows := self._store.scan(start, stop, slice_rows):
            start = rows[-1][0] + b"\x00"
            writes: _Writes = [(key, None) for key, _ in rows if self._body_id(key) not in self._references]
            if writes:
                yield writes

    def _key(self, body_id: int, piece: int) -> bytes:
        return self._prefix + body_id.to_bytes(_BODY_ID_BYTES, "big") + piece.to_bytes(2, "big")

    def _body_id(self, key: bytes) -> int:
        return int.from_bytes(key[len(self._prefix) : len(self._prefix) + _BODY_ID_BYTES], "big")


def _piece_lengths(length: int) -> list[int]:
    whole, rest = divmod(length, PIECE_BYTES_MAX)
    return [PIECE_BYTES_MAX] * whole + ([rest] if rest else [])
