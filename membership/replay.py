"""Which packets of one sender's session were already taken.

A window over the sender's packet numbers, as in IPsec (RFC 4303 section 3.4.3) and DTLS: what is newer is taken and
moves the window, what is inside is taken once, what is older than the window is refused as if it were a replay.
"""

__all__ = ["ReplayWindow"]

WINDOW_PACKETS = 4096  # a sender numbers all its packets in one row, so gaps are normal; some minutes of LAN traffic
_MASK = (1 << WINDOW_PACKETS) - 1


class ReplayWindow:
    """The packet numbers taken so far from one session."""

    __slots__ = ("_highest", "_taken")

    def __init__(self) -> None:
        self._highest = 0
        self._taken = 0  # bit i: number highest - i was taken

    def take(self, number: int) -> bool:
        """Return whether this number, 1 or more, is new, and remember it."""
        ahead = number - self._highest
        if ahead > 0:
            self._taken = 1 if ahead >= WINDOW_PACKETS else ((self._taken << ahead) | 1) & _MASK
            self._highest = number
            return True
        if -ahead >= WINDOW_PACKETS or number < 1:
            return False  # before any shift: who has the key may say a number that makes it one of exabytes
        bit = 1 << -ahead
        if self._taken & bit:
            return False
        self._taken |= bit
        return True
