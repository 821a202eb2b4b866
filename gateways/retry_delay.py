"""Delays between attempts: decorrelated jitter, so that many that failed together do not come back together.

Source: "Exponential Backoff And Jitter", M. Brooker, 2015: the next delay is random between the least and thrice the
last one.
"""

from __future__ import annotations

from random import Random

__all__ = ["DELAY_MAX_S", "DELAY_MIN_S", "RetryDelay"]

DELAY_MIN_S = 0.1
DELAY_MAX_S = 30.0


class RetryDelay:
    """Delays of one thing that is tried again and again; ``reset`` after a success."""

    def __init__(self, random: Random, least_s: float = DELAY_MIN_S, most_s: float = DELAY_MAX_S) -> None:
        self._random, self._least_s, self._most_s = random, least_s, most_s
        self.last_s = 0.0

    def next(self) -> float:
        """Return how long to wait before the next attempt, in seconds."""
        self.last_s = min(self._most_s, self._random.uniform(self._least_s, max(self._least_s, 3 * self.last_s)))
        return self.last_s

    def reset(self) -> None:
        """Begin anew with short delays."""
        self.last_s = 0.0
