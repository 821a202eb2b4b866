"""Replay protection: the set of accepted packet numbers of one sender's session.

A window over the sender's packet numbers, as in IPsec (RFC 4303 section 3.4.3) and DTLS. A newer number is accepted and
moves the window, one inside is accepted once, an older one is refused as a replay.
"""

__all__ = ["ReplayWindow"]

WINDOW_PACKETS = 4096  # a sender uses one sequence for all receivers, so gaps are normal; some minutes of LAN traffic
_MASK = (1 << WINDOW_PACKETS) - 1


class ReplayWindow:
    """The accepted packet numbers of one session."""

    __slots__ = ("_highest", "_taken")

    def __init__(self) -> None:
        self._highest = 0
        self._taken = 0  # bit i: number highest - i was accepted

    def take(self, number: int) -> bool:
        """Return whether this number, 1 or more, is new, and record it."""
        ahead = number - self._highest
        if ahead > 0:
            self._taken = 1 if ahead >= WINDOW_PACKETS else ((self._taken << ahead) | 1) & _MASK
            self._highest = number
            return True
        if -ahead >= WINDOW_PACKETS or number < 1:
            return False  # before any shift: a holder of the key could send a number that makes the bit set huge
        bit = 1 << -ahead
        if self._taken & bit:
            return False
        self._taken |= bit
        return True
