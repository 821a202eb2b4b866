"""Combines limits of the same name into the strictest one. A limit of 0, or a missing one, does not restrict."""

from collections.abc import Mapping

__all__ = ["strictest"]


def strictest(*all_limits: Mapping[str, int]) -> dict[str, int]:
    """Return the combined limits: none of them widens another."""
    combined: dict[str, int] = {}
    for limits in all_limits:
        for name, most in limits.items():
            if most > 0:
                combined[name] = min(most, combined.get(name, most))
    return combined
