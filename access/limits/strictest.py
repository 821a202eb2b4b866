"""The strictest of several limits of one name. A limit of 0, or none, asks for nothing."""

from collections.abc import Mapping

__all__ = ["strictest"]


def strictest(*all_limits: Mapping[str, int]) -> dict[str, int]:
    """Return the limits that hold together: none of them widens another."""
    held: dict[str, int] = {}
    for limits in all_limits:
        for name, most in limits.items():
            if most > 0:
                held[name] = min(most, held.get(name, most))
    return held
