"""How long a suspected member has to refute.

The time starts long and falls as independent members confirm: one slow observer cannot kill a member quickly, several
that agree can. Source: Lifeguard (2018), section IV.B, Local Health Aware Suspicion.
"""

from math import log

__all__ = ["Suspicion", "suspicion_timeout_s"]


def suspicion_timeout_s(confirmations: int, expected: int, min_s: float, max_s: float) -> float:
    """Return how long a member stays suspect, falling from max_s to min_s as suspicion is confirmed.

    Args:
        confirmations: Independent suspicions heard after the first, 0 or more; above expected changes nothing.
        expected: Confirmations that reach min_s; 0 means that nobody else could confirm, and gives min_s.
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
    """One running suspicion: who suspects, and when the member is declared dead."""

    def __init__(self, now: float, accuser: str, expected: int, min_s: float, max_s: float) -> None:
        """Start the clock at ``now``; the first accuser is no confirmation."""
        self._started = now
        self._accusers = {accuser}
        self._expected = expected
        self._min_s = min_s
        self._max_s = max_s

    @property
    def confirmations(self) -> int:
        """Independent accusers after the first, at most the number expected."""
        return len(self._accusers) - 1

    @property
    def deadline(self) -> float:
        """When the member is declared dead unless it refutes."""
        return self._started + suspicion_timeout_s(self.confirmations, self._expected, self._min_s, self._max_s)

    def confirm(self, accuser: str) -> bool:
        """Count an accuser. Returns whether it is news, which is then worth telling others."""
        if accuser in self._accusers or self.confirmations >= self._expected:
            return False
        self._accusers.add(accuser)
        return True

    def shift(self, pause_s: float) -> None:
        """Our own process stood still: the suspect could not reach us for that time, so it does not count."""
        self._started += pause_s
