"""Retry delays with decorrelated jitter, so that clients that failed together do not retry together.

Source: "Exponential Backoff And Jitter", M. Brooker, 2015. The next delay is random between the minimum and three times
the last delay.
"""

from __future__ import annotations

from random import Random

__all__ = ["DELAY_MAX_S", "DELAY_MIN_S", "RetryDelay"]

DELAY_MIN_S = 0.1
DELAY_MAX_S = 30.0


class RetryDelay:
    """Delays of one retried operation; call ``reset`` after a success."""

    def __init__(self, random: Random, min_s: float = DELAY_MIN_S, max_s: float = DELAY_MAX_S) -> None:
        self._random, self._min_s, self._max_s = random, min_s, max_s
        self.last_s = 0.0

    def next(self) -> float:
        """Return the delay before the next attempt, in seconds."""
        self.last_s = min(self._max_s, self._random.uniform(self._min_s, max(self._min_s, 3 * self.last_s)))
        return self.last_s

    def reset(self) -> None:
        """Restart with short delays."""
        self.last_s = 0.0
