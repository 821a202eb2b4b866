"""Partitions on their way to serving: selects those that may advance, so that an iteration need not check all.

A partition is checked after an event of its own. All are checked when the map or its settled epoch changed, and
periodically, because edges are polled again. An iteration advances a bounded number.
"""

from collections.abc import Container, Iterable

__all__ = ["ADVANCE_STEPS", "PartitionActivation"]

ADVANCE_STEPS = 100  # of ten microseconds, in an iteration, for partitions on their way to serving
ADVANCE_AGAIN_S = 0.1  # interval of the check of all waiting partitions


class PartitionActivation:
    """Partitions that do not serve yet."""

    def __init__(self) -> None:
        self._waiting: dict[int, None] = {}
        self._to_advance: dict[int, None] = {}  # those of them that may be able to advance
        self._advanced_for = (-1, -1)  # map epoch and settled epoch of the last check of all
        self._next_check = float("-inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, number: int) -> bool:
        return number in self._waiting

    def add(self, number: int) -> None:
        """Add a partition that came to this node."""
        self._waiting[number] = None

    def forget(self, number: int) -> None:
        """Remove a partition that serves now."""
        del self._waiting[number]

    def keep_only(self, hosted: Container[int]) -> None:
        """Remove the partitions that have another primary now."""
        for number in [number for number in self._waiting if number not in hosted]:
            del self._waiting[number]

    def select(self, now: float, epochs: tuple[int, int], active: Iterable[int]) -> None:
        """Select the partitions that may be able to advance.

        Args:
            now: Seconds.
            epochs: Of the map, and the settled one.
            active: Partitions with events in this iteration.
        """
        if epochs != self._advanced_for or now >= self._next_check:
            self._advanced_for = epochs
            self._next_check = now + ADVANCE_AGAIN_S
            self._to_advance = dict.fromkeys(self._waiting)
        else:
            self._to_advance.update((number, None) for number in active if number in self._waiting)

    def take(self) -> int | None:
        """Return the next partition to check, None if there is no other."""
        number = next(iter(self._to_advance), None)
        if number is not None:
            del self._to_advance[number]
        return number

    def select_again(self, number: int) -> None:
        """Select a partition again for the next iteration."""
        self._to_advance[number] = None

    def deadline(self, now: float) -> float:
        """Return the time of the next check; infinity while every partition serves."""
        if not self._waiting:
            return float("inf")
        return now if self._to_advance else self._next_check
