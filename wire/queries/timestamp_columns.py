"""Converts timestamps of a node's clocks to UTC; repeated conversions of one timestamp agree."""

from collections.abc import Callable

__all__ = ["SLACK_MS", "TimestampColumns"]

SLACK_MS = 50  # a clock step is followed; late or rounded readings are ignored


class TimestampColumns:
    """The difference between UTC and each clock, kept until it is wrong by more than ``SLACK_MS``.

    Without it each query would measure the difference again, and timestamps would vary by the milliseconds between two
    readings.

    Args:
        utc_ms: Milliseconds since the epoch.
    """

    def __init__(self, utc_ms: Callable[[], int]) -> None:
        self._utc_ms = utc_ms
        self._ahead: dict[int, int] = {}  # by clock, at most one per partition

    def ahead(self, now_ms: float, clock: int = 0) -> int:
        """Return how far UTC is ahead of a clock with the current value ``now_ms``, in milliseconds."""
        measured = self._utc_ms() - int(now_ms)
        kept = self._ahead.get(clock)
        if kept is None or abs(measured - kept) > SLACK_MS:
            kept = self._ahead[clock] = measured
        return kept

    def utc_of(self, then_ms: float, now_ms: float, clock: int = 0) -> int:
        """Return a timestamp of a clock with the current value ``now_ms``, in milliseconds since the epoch."""
        return int(then_ms) + self.ahead(now_ms, clock)
