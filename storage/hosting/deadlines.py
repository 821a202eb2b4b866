"""Deadlines of partitions: one time per partition, the earliest known.

An idle partition has none and costs no time. A deadline may be too early, because the served clock can stop: the
caller checks whether work is due, and sets the next deadline.
"""

from heapq import heapify, heappop, heappush

__all__ = ["NEVER", "Deadlines"]

NEVER = float("inf")
STALE_MIN = 64  # superseded heap entries below which the heap is not rebuilt


class Deadlines:
    """Times of partitions, earliest first."""

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, number: int) -> bool:
        return number in self._at

    def set(self, number: int, when: float) -> None:
        """Set a partition's deadline, unless it has an earlier one."""
        if when < self._at.get(number, NEVER):
            self._at[number] = when
            heappush(self._heap, (when, number))
            if len(self._heap) > 2 * len(self._at) + STALE_MIN:
                self._heap = [(at, other) for other, at in self._at.items()]
                heapify(self._heap)

    def take(self, now: float, most: int) -> list[int]:
        """Return up to ``most`` partitions whose deadline has passed, and remove their deadlines."""
        taken: list[int] = []
        while self.next <= now and len(taken) < most:
            _, number = heappop(self._heap)
            del self._at[number]
            taken.append(number)
        return taken

    def forget(self, number: int) -> None:
        """Remove a partition that is not here any more."""
        self._at.pop(number, None)

    @property
    def next(self) -> float:
        """The earliest time; infinity while there is none."""
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else NEVER
