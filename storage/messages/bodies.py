"""Bodies that stand in the store once: those that several sessions share, and those too large for one row.

A body is pieces named by its id; it goes when the last row that names it goes. How many do is counted in memory and
counted anew from the rows when a partition is loaded. Decision: docs/adr/0009-key-order-and-sstables.md.
"""

from storage.state import keys
from storage.state.partition import Partition

__all__ = ["Bodies"]


class Bodies:
    """Shared and large bodies of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def store(self, payload: bytes, references: int) -> int:
        """Write a body once, in pieces, for so many rows that will name it; return its id."""
        partition = self._partition
        body = partition.meta.next_body
        partition.meta.next_body += 1
        step = partition.settings.piece_bytes
        for piece, start in enumerate(range(0, len(payload), step)):
            partition.put(keys.body_key(partition.number, body, piece), payload[start : start + step])
        partition.body_references[body] = references
        return body

    def read(self, body: int) -> bytes:
        """Return a body, its pieces joined."""
        pieces = []
        partition = self._partition
        for piece in range(1 << 16):
            value = partition.get(keys.body_key(partition.number, body, piece))
            if value is None:
                break
            pieces.append(value)
        return b"".join(pieces)

    def release(self, body: int) -> None:
        """One row that named it is gone."""
        partition = self._partition
        if body not in partition.body_references:
            return
        partition.body_references[body] -= 1
        if partition.body_references[body] == 0:
            del partition.body_references[body]
            for piece in range(1 << 16):
                key = keys.body_key(partition.number, body, piece)
                if partition.get(key) is None:
                    break
                partition.delete(key)
