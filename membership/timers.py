"""Named deadlines of a core: set again to move, cancelled by name, all moved at once after a pause.

It returns the names that are due at ``now``, in order of their deadlines and then of their setting.
"""

from heapq import heapify, heappop, heappush
from math import inf

__all__ = ["TimerKey", "Timers"]

TimerKey = tuple[str, str | int]


class Timers:
    """A set of named deadlines. A moved or cancelled one leaves a stale entry in the heap, skipped when met."""

    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, TimerKey]] = []
        self._count = 0

    def __contains__(self, key: TimerKey) -> bool:
        return key in self._deadlines

    def set(self, key: TimerKey, deadline: float) -> None:
        """Set or move one deadline."""
        self._count += 1
        self._deadlines[key] = (deadline, self._count)
        heappush(self._heap, (deadline, self._count, key))
        if len(self._heap) > 2 * len(self._deadlines) + 64:
            self._rebuild()

    def cancel(self, key: TimerKey) -> None:
        """Remove a deadline, if it is set."""
        self._deadlines.pop(key, None)

    def clear(self) -> None:
        """Remove all deadlines."""
        self._deadlines.clear()
        self._heap.clear()

    @property
    def next_deadline(self) -> float:
        """The earliest deadline, or infinity."""
        while self._heap:
            deadline, count, key = self._heap[0]
            if self._deadlines.get(key) == (deadline, count):
                return deadline
            heappop(self._heap)
        return inf

    def pop_due(self, now: float) -> TimerKey | None:
        """Remove and return the earliest timer that is due, or None."""
        if self.next_deadline > now:
            return None
        key = heappop(self._heap)[2]
        del self._deadlines[key]
        return key

    def shift(self, pause_s: float) -> None:
        """Move all deadlines by a pause of this process."""
        self._deadlines = {key: (deadline + pause_s, count) for key, (deadline, count) in self._deadlines.items()}
        self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(deadline, count, key) for key, (deadline, count) in self._deadlines.items()]
        heapify(self._heap)
