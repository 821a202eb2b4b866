"""Waits between two dials of one node: doubled with each failure, up to a bound, with jitter; alike in every tier."""

import random

__all__ = ["BACKOFF_MIN_S", "backoff_s"]

BACKOFF_MIN_S = 0.05  # after the first failure, or when a link that stood has ended
BACKOFF_MAX_S = 1.0  # a peer that comes back is found within about this


def backoff_s(failures: int, rng: random.Random) -> float:
    """Return how long to wait before a node is dialled again.

    Args:
        failures: Dials in a row that made no link.
        rng: Of the node that dials: all that lost the same peer do not come back at once.
    """
    ceiling = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(failures, 10))
    return max(BACKOFF_MIN_S, ceiling * (0.5 + 0.5 * rng.random()))
