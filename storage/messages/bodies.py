"""Message bodies that are stored once: those that several sessions share, and those too large for one row.

A body is a sequence of pieces with one id. It is deleted with the last row that references it. References and pieces
are counted in memory, and recounted from the rows when a partition loads: no piece is read only to delete it.
Decision: docs/adr/0009-key-order-and-sstables.md.
"""

from storage.state import keys
from storage.state.partition import Partition

__all__ = ["Bodies"]


class Bodies:
    """Shared and large bodies of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._stored: dict[int, tuple[int, int]] = {}  # id -> pieces, bytes

    def restore(self, body: int, piece_bytes: int) -> None:
        """Add one more piece of a body read from disk."""
        pieces, size = self._stored.get(body, (0, 0))
        self._stored[body] = pieces + 1, size + piece_bytes

    def forget(self, body: int) -> None:
        """Forget a body that no row references; the caller deletes its pieces."""
        self._stored.pop(body, None)

    def size(self, body: int) -> int:
        """Return the bytes of a body; 0 for the id 0, which is never used."""
        return self._stored.get(body, (0, 0))[1]

    def store(self, payload: bytes, references: int) -> int:
        """Write a body once, in pieces, for that many referencing rows; return its id."""
        partition = self._partition
        body = partition.meta.next_body
        partition.meta.next_body += 1
        step = partition.settings.piece_bytes
        pieces = range(0, len(payload), step)
        for piece, start in enumerate(pieces):
            partition.put(keys.body_key(partition.number, body, piece), payload[start : start + step])
        self._stored[body] = len(pieces), len(payload)
        partition.body_references[body] = references
        return body

    def read(self, body: int) -> bytes:
        """Return a body, its pieces joined."""
        partition = self._partition
        pieces, _ = self._stored.get(body, (0, 0))
        found = (partition.get(keys.body_key(partition.number, body, piece)) for piece in range(pieces))
        return b"".join(value or b"" for value in found)

    def release(self, body: int) -> None:
        """Remove one reference to a body."""
        partition = self._partition
        if body not in partition.body_references:
            return
        partition.body_references[body] -= 1
        if partition.body_references[body] == 0:
            del partition.body_references[body]
            for piece in range(self._stored.pop(body, (0, 0))[0]):
                partition.delete(keys.body_key(partition.number, body, piece))
