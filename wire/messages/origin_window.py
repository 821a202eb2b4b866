"""Which messages of one publishing session were taken somewhere: exactly those, in a window.

They may come out of order: a shared group's pick that another destination refused, or that an edge took with it when it
died, comes after later ones; and a message that was refused, and whose client did not hear of it, is sent again under a
new counter before those that followed it under their old ones. No counter is given more than a window above the lowest
that is not released, so what lies further below the highest is a repeat. Source: docs/protocol.md rule 4.9.
"""

__all__ = ["OriginWindow"]

COUNTER_BYTES = 8


class OriginWindow:
    """Counters of one session, at one destination.

    Args:
        window: Counters below the highest that are told apart, as ``inbound_unreleased_max``.
        value: A stored one, as ``value`` returned it; the highest alone says that all below it were taken.
    """

    __slots__ = ("_bytes", "_highest", "_taken")

    def __init__(self, window: int, value: bytes = b"") -> None:
        self._bytes = (window + 8) // 8
        self._highest = int.from_bytes(value[:COUNTER_BYTES], "big")
        self._taken = int.from_bytes(value[COUNTER_BYTES:], "big")  # bit n: highest - n was taken
        if len(value) == COUNTER_BYTES:
            self._taken = (1 << 8 * self._bytes) - 1

    def has(self, counter: int) -> bool:
        """Whether it was taken, or is too old to be new."""
        below = self._highest - counter
        return below >= 0 and (below >= 8 * self._bytes or bool(self._taken >> below & 1))

    def add(self, counter: int) -> None:
        """Take it."""
        if counter > self._highest:
            shift = min(counter - self._highest, 8 * self._bytes)
            self._taken = self._taken << shift & ((1 << 8 * self._bytes) - 1)
            self._highest = counter
        self._taken |= 1 << self._highest - counter

    def value(self) -> bytes:
        """Return it for the store: the highest, then which of those below it were taken."""
        size = (self._taken.bit_length() + 7) // 8
        return self._highest.to_bytes(COUNTER_BYTES, "big") + self._taken.to_bytes(size, "big")
