"""Places for requests of callers that authenticated: a caller may hold as many as are free.

A caller alone gets half of the places, and whatever callers hold, another one still finds some (dynamic thresholds,
Choudhury and Hahne, 1998). Requests whose caller is not known yet are in the pool ``admin_requests``.
"""

from collections import Counter

__all__ = ["CallerPlaces"]


class CallerPlaces:
    """Places of one kind of requests.

    Args:
        places_max: Requests at once, of all callers.
    """

    def __init__(self, places_max: int) -> None:
        self._free = places_max
        self._held: Counter[str] = Counter()

    def enter(self, caller: str) -> bool:
        """Take a place, or return False. Each True is followed by one ``leave``."""
        if self._free <= self._held[caller]:
            return False
        self._free -= 1
        self._held[caller] += 1
        return True

    def leave(self, caller: str) -> None:
        """Free a place."""
        self._free += 1
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
