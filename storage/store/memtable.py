"""Memtable: rows that are in the write-ahead log and not in the data file yet, by partition.

A row deleted before its flush never reaches the data file: most messages are consumed within a second. That requires
that its key does not exist below, in the data file or in the immutable memtable. Ascending keys (a session's queue, a
partition's log) are known to be new if they exceed the highest key of their head below. Deletions of other keys are
flushed as tombstones. Compiled, with the same results uncompiled: ``memtable.pxd``.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import cython

from storage.store.errors import ValueTooLarge
from storage.store.record import RESERVED_PREFIX
from wire.messages.octets import Octets

if not cython.compiled:
    from wire.messages.octets import add16, add32, add_bytes, take_all

__all__ = ["ABSENT", "KeyUpperBounds", "MemTable", "encode_rows"]

HEADS_MAX = 100_000  # heads with a cached highest key
ABSENT = object()  # result of ``get`` for a key that is not in this memtable
TAIL = 8  # bytes behind the head of an ascending key

if not cython.compiled:  # compiled, this is a C constant: memtable.pxd
    DELETED = 0xFFFFFFFF


class KeyUpperBounds:
    """Upper bounds of the keys below the active memtable: the highest key of each head.

    Args:
        ascending: Kinds (third byte of a key) whose keys ascend within their head.
        highest: Returns the highest key of a head in the data file, b"" for none.
    """

    def __init__(self, ascending: bytes, highest: Callable[[bytes], bytes]) -> None:
        self.ascending = ascending
        self.highest = highest
        self.tops: dict[bytes, bytes] = {}

    def forget(self) -> None:
        """Clear the cached bounds after direct writes to the data file, when all memtables are empty."""
        self.tops.clear()


class PartRows:
    """Rows of one partition: ``fresh`` have keys that do not exist below, ``rows`` are all others (None: deleted)."""

    def __init__(self) -> None:
        self.fresh: dict[bytes, bytes] = {}
        self.rows: dict[bytes, bytes | None] = {}
        self.ordered: list[bytes] | None = None


class MemTable:
    """One memtable.

    Attributes:
        number: Of the newest commit in it.
    """

    def __init__(self, below: KeyUpperBounds, number: int) -> None:
        self.number = number
        self.below = below
        self.parts: dict[bytes, PartRows] = {}

    def __len__(self) -> int:
        count: cython.Py_ssize_t = 0
        part: PartRows
        for part in self.parts.values():
            count += len(part.fresh) + len(part.rows)
        return int(count)

    def apply(self, batch: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Apply the rows of a commit."""
        part: PartRows | None = None
        last: bytes = b""
        for key, value in batch:
            if part is None or key[:2] != last:
                last = key[:2]
                part = part_of(self, last)
            if value is None:
                delete_row(part, key)
            else:
                put_row(self, part, key, value)

    def get(self, key: bytes) -> object:
        """Return the value of a key, None if it was deleted, ABSENT if this memtable does not have it."""
        part: PartRows | None = self.parts.get(key[:2])
        if part is None:
            return ABSENT
        value: object = part.fresh.get(key, ABSENT)
        if value is ABSENT:
            value = part.rows.get(key, ABSENT)
        return value

    def collect(self, start: bytes, stop: bytes, found: dict[bytes, bytes | None]) -> None:
        """Add this memtable's rows in [start, stop) to a dict, replacing existing ones."""
        for head in self.heads(start[:2], stop[:2]):
            part: PartRows = self.parts[head]
            for key in keys_between(part, start, stop):
                found[key] = part.fresh[key] if key in part.fresh else part.rows[key]

    def heads(self, first: bytes, last: bytes) -> list[bytes]:
        """Return the partitions of a key range with rows here, in order; usually one of thousands."""
        if len(first) == len(last) == 2 and first[0] == last[0] and last[1] <= first[1] + 1:
            near = [first] if first == last else [first, last]
            return [head for head in near if head in self.parts]
        return [head for head in sorted(self.parts) if first <= head <= last]

    def some(self, most: int) -> list[tuple[bytes, bytes | None]]:
        """Return some of the rows, to be flushed to the data file."""
        moved: list[tuple[bytes, bytes | None]] = []
        part: PartRows
        for part in self.parts.values():
            for rows in (part.fresh, part.rows):
                for row in rows.items():
                    if len(moved) >= most:
                        return moved
                    moved.append(row)
        return moved

    def without(self, rows: list[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
        """Return the rows of the immutable memtable that this one neither rewrote nor deleted."""
        left: list[tuple[bytes, bytes | None]] = []
        part: PartRows | None
        for row in rows:
            part = self.parts.get(row[0][:2])
            if part is None or row[0] not in part.rows:  # a fresh row here does not exist there
                left.append(row)
        return left

    def forget(self, moved: list[tuple[bytes, bytes | None]], over: "MemTable | None") -> None:
        """Remove flushed rows, and rows that ``over``, the next memtable, has.

        Its deletion of a fresh row is removed with it, because the row never reached the data file.
        """
        for key, _ in moved:
            part: PartRows = self.parts[key[:2]]
            if key in part.fresh:
                del part.fresh[key]
                if over is not None:
                    forget_deletion(over, key)
            else:
                del part.rows[key]
            part.ordered = None
            if not part.fresh and not part.rows:
                del self.parts[key[:2]]


def forget_deletion(table: MemTable, key: bytes) -> None:
    """Remove the deletion of a row; a written row stays."""
    part: PartRows | None = table.parts.get(key[:2])
    if part is not None and part.rows.get(key, ABSENT) is None:
        del part.rows[key]
        part.ordered = None
        if not part.fresh and not part.rows:
            del table.parts[key[:2]]


def part_of(table: MemTable, head: bytes) -> PartRows:
    """Return the rows of a partition."""
    part: PartRows | None = table.parts.get(head)
    if part is None:
        part = PartRows()
        table.parts[head] = part
    return part


def put_row(table: MemTable, part: PartRows, key: bytes, value: bytes) -> None:
    """Add a row."""
    if key in part.fresh:
        part.fresh[key] = value
        return
    part.ordered = None
    if key not in part.rows and note_new(table.below, key):
        part.fresh[key] = value
    else:
        part.rows[key] = value


def note_new(below: KeyUpperBounds, key: bytes) -> cython.bint:
    """Record that a key may exist below from now on; return True if it certainly does not exist there yet."""
    size: cython.Py_ssize_t = len(key)
    if size < TAIL + 3 or key[2] not in below.ascending:
        return False
    head: bytes = key[: size - TAIL]
    top: bytes | None = below.tops.get(head)
    if top is None:
        if len(below.tops) >= HEADS_MAX:
            return False
        top = below.highest(head)
    if key <= top:
        below.tops[head] = top
        return False
    below.tops[head] = key
    return True


def delete_row(part: PartRows, key: bytes) -> None:
    """Apply the deletion of a row.

    A row of the immutable memtable stays there: a power loss may revert the deletion but not that memtable.
    """
    if key in part.fresh:
        del part.fresh[key]
        part.ordered = None
        return
    if key not in part.rows:
        part.ordered = None
    part.rows[key] = None


def keys_between(part: PartRows, start: bytes, stop: bytes) -> list[bytes]:
    """Return the keys of a range, in order."""
    if part.ordered is None:
        part.ordered = sorted([*part.fresh, *part.rows])
    ordered: list[bytes] = part.ordered
    return ordered[bisect_left(ordered, start) : bisect_left(ordered, stop)]


def encode_rows(
    octets: Octets, batch: Sequence[tuple[bytes, bytes | None]], key_bytes_max: int, value_bytes_max: int
) -> bytes:
    """Return the rows of a commit in the format of the log.

    Raises:
        ValueTooLarge: A key or value is longer than allowed.
        ValueError: A key is empty, or reserved for the store itself.
    """
    longest: cython.Py_ssize_t = key_bytes_max
    largest: cython.Py_ssize_t = value_bytes_max
    octets.used = 0
    for key, value in batch:
        if not key or key.startswith(RESERVED_PREFIX):
            raise ValueError("key is empty or reserved for the store itself")
        if len(key) > longest:
            raise ValueTooLarge(f"key of {len(key)} bytes, at most {longest}")
        if value is not None and len(value) > largest:
            raise ValueTooLarge(f"value of {len(value)} bytes, at most {largest}")
        add16(octets, len(key))
        add32(octets, DELETED if value is None else len(value))
        add_bytes(octets, key)
        if value is not None:
            add_bytes(octets, value)
    return take_all(octets)
