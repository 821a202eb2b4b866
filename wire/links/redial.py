"""Waits between two dials of one node: exponential backoff with a bound and jitter, alike in every tier."""

import random

__all__ = ["BACKOFF_MIN_S", "backoff_s"]

BACKOFF_MIN_S = 0.05  # after the first failure, or after the end of an established link
BACKOFF_MAX_S = 1.0  # a restarted peer is found within about this time


def backoff_s(failures: int, rng: random.Random) -> float:
    """Return the wait in seconds before a node is dialled again.

    Args:
        failures: Dials in a row that made no link.
        rng: Of the dialling node: nodes that lost the same peer must not redial at once.
    """
    ceiling = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(failures, 10))
    return max(BACKOFF_MIN_S, ceiling * (0.5 + 0.5 * rng.random()))
