"""The skew of a shared group: whether one member waits with more messages than the others."""

from collections.abc import Sequence

__all__ = ["skew", "skew_of"]


def skew(queued: Sequence[int]) -> float | None:
    """Return what the member with most messages has, divided by the mean; 1 is even, None: nothing waits."""
    return skew_of(max(queued, default=0), sum(queued), len(queued))


def skew_of(most: int, total: int, members: int) -> float | None:
    """Return the skew of a group in which one member has ``most`` of ``total`` messages."""
    return round(most * members / total, 2) if total else None
