"""Partitions on their way to serving: which of them may be able to go on, so that a turn need not look at all.

A partition is looked at when something happened to it, all of them when the map or its settled epoch moved, and at
times, because edges are asked again. A turn lets a bounded number go on.
"""

from collections.abc import Container, Iterable

__all__ = ["ADVANCE_STEPS", "PartitionActivation"]

ADVANCE_STEPS = 100  # of ten microseconds, in a turn, for partitions that go on towards serving
ADVANCE_AGAIN_S = 0.1  # between two looks at those that wait for others


class PartitionActivation:
    """Partitions that do not serve yet."""

    def __init__(self) -> None:
        self._waiting: dict[int, None] = {}
        self._to_advance: dict[int, None] = {}  # those of them that may be able to go on
        self._advanced_for = (-1, -1)  # the map's epoch and the settled one when all were looked at
        self._next_look = float("-inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, number: int) -> bool:
        return number in self._waiting

    def add(self, number: int) -> None:
        """Note that a partition came to this node."""
        self._waiting[number] = None

    def forget(self, number: int) -> None:
        """Forget a partition that serves now."""
        del self._waiting[number]

    def keep_only(self, hosted: Container[int]) -> None:
        """Forget the partitions whose primary is another node now."""
        for number in [number for number in self._waiting if number not in hosted]:
            del self._waiting[number]

    def look(self, now: float, epochs: tuple[int, int], active: Iterable[int]) -> None:
        """Find the partitions that may be able to go on.

        Args:
            now: Seconds.
            epochs: Of the map, and the settled one.
            active: Partitions that something happened to in this turn.
        """
        if epochs != self._advanced_for or now >= self._next_look:
            self._advanced_for = epochs
            self._next_look = now + ADVANCE_AGAIN_S
            self._to_advance = dict.fromkeys(self._waiting)
        else:
            self._to_advance.update((number, None) for number in active if number in self._waiting)

    def take(self) -> int | None:
        """Return the next partition to look at, None if there is no other."""
        number = next(iter(self._to_advance), None)
        if number is not None:
            del self._to_advance[number]
        return number

    def look_again(self, number: int) -> None:
        """Note that a partition is on its way still, and may go on in the next turn."""
        self._to_advance[number] = None

    def deadline(self, now: float) -> float:
        """Return when to look again; infinity while every partition serves."""
        if not self._waiting:
            return float("inf")
        return now if self._to_advance else self._next_look
