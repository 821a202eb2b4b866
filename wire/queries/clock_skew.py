"""The skew of a shared subscription: whether one member has a longer queue than the others."""

from collections.abc import Sequence

__all__ = ["skew", "skew_of"]


def skew(queued: Sequence[int]) -> float | None:
    """Return the longest queue divided by the mean; 1 is even, None: all are empty."""
    return skew_of(max(queued, default=0), sum(queued), len(queued))


def skew_of(most: int, total: int, members: int) -> float | None:
    """Return the skew of a group whose longest queue has ``most`` of ``total`` messages."""
    return round(most * members / total, 2) if total else None
