"""Strikes: events of a key within a window, and the penalty that so many of them bring.

Flapping and failed logins are both of this kind (``access/limits/flapping.py``). A key that has its penalty stands in a
table of its own, so a flood of keys with one event each cannot push it out.
"""

from collections.abc import Hashable

__all__ = ["Strikes"]

SWEPT_PER_EVENT = 2


class Strikes:
    """Events by key, and the keys that are refused for a time.

    Args:
        limit: Events within the window that bring the penalty.
        window_s: Length of the sliding window.
        penalty_s: Time for which the key is refused; it begins with the last of the events.
        keys_max: Bound of each of both tables; beyond it the oldest key is dropped and counted.
    Attributes:
        limit: As given; another one holds for what comes, and no penalty ends by it.
        dropped: Keys that left a table early, because it was full.
    """

    def __init__(self, limit: int, window_s: float, penalty_s: float, keys_max: int) -> None:
        if limit < 1 or not (window_s > 0 and penalty_s > 0) or keys_max < 1:
            raise ValueError(f"{limit} strikes in {window_s} s bring {penalty_s} s, {keys_max} keys: all above 0")
        self.limit = limit
        self._window_s = window_s
        self._penalty_s = penalty_s
        self._keys_max = keys_max
        self._events: dict[Hashable, tuple[float, ...]] = {}  # the newest of each; the key with the oldest event first
        self._until: dict[Hashable, float] = {}  # ends in this order
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._events) + len(self._until)

    def note(self, key: Hashable, now: float) -> bool:
        """Note an event; return True if it brings the penalty. An event during the penalty does not lengthen it."""
        if self.penalty_s(key, now):
            return False
        events = tuple(at for at in self._events.pop(key, ()) if now - at < self._window_s)
        events = (*events, now)
        if len(events) >= self.limit:
            self._until[key] = now + self._penalty_s
            self._bound(self._until)
            return True
        self._events[key] = events
        self._sweep(now)
        self._bound(self._events)
        return False

    def penalty_s(self, key: Hashable, now: float) -> float:
        """Return for how many seconds the key is still refused, 0.0 if it is not."""
        until = self._until.get(key)
        if until is None:
            return 0.0
        if until <= now:
            del self._until[key]
            return 0.0
        return until - now

    def forget(self, key: Hashable) -> None:
        """Remove a key's events, but not its penalty."""
        self._events.pop(key, None)

    def _sweep(self, now: float) -> None:
        """Let the oldest key go if its events are over: the table shrinks as fast as it grows."""
        for _ in range(SWEPT_PER_EVENT):
            oldest = next(iter(self._events))
            if now - self._events[oldest][-1] < self._window_s:
                break  # the newest key is never over, so the table does not become empty here
            del self._events[oldest]

    def _bound(self, table: dict[Hashable, tuple[float, ...]] | dict[Hashable, float]) -> None:
        while len(table) > self._keys_max:
            del table[next(iter(table))]
            self.dropped += 1
