"""Splits lists of topics and filters into pieces that fit a frame and need little time at their receiver."""

from collections.abc import Iterator, Sequence

__all__ = ["PIECE_BYTES", "pieces"]

PIECE_BYTES = 256 * 1024  # of names; one alone has at most 65 535 (MQTT 5.0 section 1.5.4)
CHARACTER_BYTES = 4  # at most, in UTF-8


def pieces(names: Sequence[str], count_max: int) -> Iterator[list[str]]:
    """Yield names in order, in lists that fit one message; no list for no names."""
    for start in range(0, len(names), count_max):
        piece = list(names[start : start + count_max])
        if CHARACTER_BYTES * sum(map(len, piece)) <= PIECE_BYTES:
            yield piece
            continue
        some: list[str] = []
        size = 0
        for name in piece:
            size += CHARACTER_BYTES * len(name)
            if some and size > PIECE_BYTES:
                yield some
                some, size = [], CHARACTER_BYTES * len(name)
            some.append(name)
        yield some
