# cython: annotation_typing=False
"""Loops over the rows of operations and batches, compiled because they run for every written row.

The results are the same uncompiled (``row_lists.pxd``).
"""

from collections.abc import Iterable, Mapping, Sequence

__all__ = ["add_to_overlay", "cut", "octets_of", "take_from_overlay"]

ROW_OVERHEAD = 16  # bytes of a row in a log row beside key and value

Writes = Sequence[tuple[bytes, bytes | None]]


def cut(writes: Mapping[bytes, bytes | None], octets_max: int) -> list[list[tuple[bytes, bytes | None]]]:
    """Divide an operation into pieces of at most ``octets_max`` bytes, each with one row at least."""
    piece: list[tuple[bytes, bytes | None]] = []
    pieces = [piece]
    size = 0
    for key, value in writes.items():
        weight = len(key) + ROW_OVERHEAD + (0 if value is None else len(value))
        if size and size + weight > octets_max:
            piece = []
            pieces.append(piece)
            size = 0
        piece.append((key, value))
        size += weight
    return pieces


def octets_of(rows: Iterable[tuple[bytes, bytes | None]]) -> int:
    """Return the bytes of keys and values."""
    size = 0
    for key, value in rows:
        size += len(key) if value is None else len(key) + len(value)
    return size


def add_to_overlay(overlay: dict[bytes, tuple[int, bytes | None]], batch: int, rows: Writes) -> None:
    """Make the rows of a batch readable before they are in the store."""
    for key, value in rows:
        overlay[key] = (batch, value)


def take_from_overlay(overlay: dict[bytes, tuple[int, bytes | None]], batch: int, rows: Writes) -> None:
    """Remove rows that are in the store from the overlay; a key that a later batch wrote again stays."""
    for key, _ in rows:
        known = overlay.get(key)
        if known is not None and known[0] <= batch:
            del overlay[key]
