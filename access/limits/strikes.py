"""Strikes: events of a key within a window, and the penalty after too many of them.

Used for flapping and failed logins (``access/limits/flapping.py``). Penalties have a separate table, so a flood of keys
with one event each cannot evict them.
"""

from collections.abc import Hashable

__all__ = ["Strikes"]

SWEPT_PER_EVENT = 2


class Strikes:
    """Events by key, and the keys with a penalty.

    Args:
        limit: Events within the window that cause the penalty.
        window_s: Length of the sliding window.
        penalty_s: Duration of the penalty, from the last event on.
        keys_max: Bound of each table; beyond it the oldest key is evicted and counted.

    Attributes:
        limit: As given; a change applies to later events and ends no penalty.
        dropped: Keys evicted early from a full table.
    """

    def __init__(self, limit: int, window_s: float, penalty_s: float, keys_max: int) -> None:
        if limit < 1 or not (window_s > 0 and penalty_s > 0) or keys_max < 1:
            raise ValueError(f"{limit} strikes in {window_s} s bring {penalty_s} s, {keys_max} keys: all above 0")
        self.limit = limit
        self._window_s = window_s
        self._penalty_s = penalty_s
        self._keys_max = keys_max
        # newest events of each key; the key with the oldest event first
        self._events: dict[Hashable, tuple[float, ...]] = {}
        self._until: dict[Hashable, float] = {}  # in order of expiry
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._events) + len(self._until)

    def note(self, key: Hashable, now: float) -> bool:
        """Record an event; return whether it causes the penalty. Events during the penalty do not extend it."""
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
        """Return for how many more seconds the key is refused, 0.0 if it is not."""
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
        """Remove the oldest key if its events expired: the table shrinks as fast as it grows."""
        for _ in range(SWEPT_PER_EVENT):
            oldest = next(iter(self._events))
            if now - self._events[oldest][-1] < self._window_s:
                break  # the newest key is never expired, so the table is not emptied here
            del self._events[oldest]

    def _bound(self, table: dict[Hashable, tuple[float, ...]] | dict[Hashable, float]) -> None:
        while len(table) > self._keys_max:
            del table[next(iter(table))]
            self.dropped += 1
