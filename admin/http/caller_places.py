"""Slots for requests of authenticated callers, with a dynamic limit per caller.

A single caller gets half of the slots, and slots always remain for others (dynamic thresholds, Choudhury and Hahne,
1998). Unauthenticated requests use the pool ``admin_requests``.
"""

from collections import Counter

__all__ = ["CallerPlaces"]


class CallerPlaces:
    """Slots of one kind of request.

    Args:
        places_max: Concurrent requests of all callers.
    """

    def __init__(self, places_max: int) -> None:
        self._free = places_max
        self._held: Counter[str] = Counter()

    def enter(self, caller: str) -> bool:
        """Take a slot, or return False. Each True must be followed by one ``leave``."""
        if self._free <= self._held[caller]:
            return False
        self._free -= 1
        self._held[caller] += 1
        return True

    def leave(self, caller: str) -> None:
        """Free a slot."""
        self._free += 1
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
