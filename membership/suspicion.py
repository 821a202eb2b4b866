"""The time that a suspected member has to refute.

The time starts long and falls as independent members confirm. So one slow observer cannot kill a member quickly, but
several observers can. Source: Lifeguard (2018), section IV.B, Local Health Aware Suspicion.
"""

from math import log

__all__ = ["Suspicion", "suspicion_timeout_s"]


def suspicion_timeout_s(confirmations: int, expected: int, min_s: float, max_s: float) -> float:
    """Return how long a member stays suspect, falling from max_s to min_s as suspicion is confirmed.

    Args:
        confirmations: Independent suspicions after the first, 0 or more; more than expected have no effect.
        expected: Confirmations that reach min_s; 0 means that no other member can confirm, and gives min_s.
        min_s: Shortest time, seconds.
        max_s: Longest time, seconds.

    Raises:
        ValueError: If min_s exceeds max_s.
        Source: Lifeguard, Local Health Aware Suspicion: max(min, max - (max - min) * log(c + 1) / log(k + 1)).
    """
    if min_s > max_s:
        raise ValueError(f"min_s {min_s} exceeds max_s {max_s}")
    if expected < 1:
        return min_s
    fraction = log(confirmations + 1) / log(expected + 1)
    return max(min_s, max_s - (max_s - min_s) * fraction)


class Suspicion:
    """One running suspicion: its accusers and its deadline."""

    def __init__(self, now: float, accuser: str, expected: int, min_s: float, max_s: float) -> None:
        """Start the suspicion at ``now``; the first accuser is not a confirmation."""
        self._started = now
        self._accusers = {accuser}
        self._expected = expected
        self._min_s = min_s
        self._max_s = max_s

    @property
    def confirmations(self) -> int:
        """Number of independent accusers after the first, at most the expected number."""
        return len(self._accusers) - 1

    @property
    def deadline(self) -> float:
        """Time at which the member is declared dead unless it refutes."""
        return self._started + suspicion_timeout_s(self.confirmations, self._expected, self._min_s, self._max_s)

    def confirm(self, accuser: str) -> bool:
        """Count an accuser; return whether it is new, and should be disseminated."""
        if accuser in self._accusers or self.confirmations >= self._expected:
            return False
        self._accusers.add(accuser)
        return True

    def shift(self, pause_s: float) -> None:
        """Extend the deadline by a pause of this process, in which the suspect could not reach it."""
        self._started += pause_s
