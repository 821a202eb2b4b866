"""Moments of a node's own clocks in UTC: a moment that is asked for twice has one time of day."""

from collections.abc import Callable

__all__ = ["SLACK_MS", "TimestampColumns"]

SLACK_MS = 50  # a clock that is set is followed, one that is read late or rounded is not


class TimestampColumns:
    """The difference between UTC and each clock, kept while it is right within ``SLACK_MS``.

    Without that, each look would measure the difference anew, and a moment would move by the milliseconds
    between two readings.

    Args:
        utc_ms: Milliseconds since the epoch.
    """

    def __init__(self, utc_ms: Callable[[], int]) -> None:
        self._utc_ms = utc_ms
        self._ahead: dict[int, int] = {}  # by clock, as many as partitions at most

    def ahead(self, now_ms: float, clock: int = 0) -> int:
        """Return how far UTC is ahead of a clock that shows ``now_ms`` now, milliseconds."""
        measured = self._utc_ms() - int(now_ms)
        kept = self._ahead.get(clock)
        if kept is None or abs(measured - kept) > SLACK_MS:
            kept = self._ahead[clock] = measured
        return kept

    def utc_of(self, then_ms: float, now_ms: float, clock: int = 0) -> int:
        """Return a moment of a clock that shows ``now_ms`` now, in milliseconds since the epoch."""
        return int(then_ms) + self.ahead(now_ms, clock)
