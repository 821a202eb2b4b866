"""The window of messages of one publishing session that a destination has processed.

Messages may arrive out of order. A shared subscription's pick that another destination refused, or that a dead edge
held, arrives after later ones. A refused message whose client missed the refusal is sent again under a new counter,
before its successors under their old ones. No counter exceeds the lowest unreleased one by more than a window, so
counters further below the highest are repeats. Source: docs/protocol.md rule 4.9.
"""

__all__ = ["OriginWindow"]

COUNTER_BYTES = 8


class OriginWindow:
    """Counters of one session, at one destination.

    Args:
        window: Number of tracked counters below the highest, as ``inbound_unreleased_max``.
        value: A stored one, as ``value`` returned it; the highest alone means that all below it were processed.
    """

    __slots__ = ("_bytes", "_highest", "_taken")

    def __init__(self, window: int, value: bytes = b"") -> None:
        self._bytes = (window + 8) // 8
        self._highest = int.from_bytes(value[:COUNTER_BYTES], "big")
        self._taken = int.from_bytes(value[COUNTER_BYTES:], "big")  # bit n: highest - n was processed
        if len(value) == COUNTER_BYTES:
            self._taken = (1 << 8 * self._bytes) - 1

    def has(self, counter: int) -> bool:
        """Whether it was processed, or is too old to be new."""
        below = self._highest - counter
        return below >= 0 and (below >= 8 * self._bytes or bool(self._taken >> below & 1))

    def add(self, counter: int) -> None:
        """Mark it as processed."""
        if counter > self._highest:
            shift = min(counter - self._highest, 8 * self._bytes)
            self._taken = self._taken << shift & ((1 << 8 * self._bytes) - 1)
            self._highest = counter
        self._taken |= 1 << self._highest - counter

    def value(self) -> bytes:
        """Return the stored form: the highest, then a bit set of the processed ones below it."""
        size = (self._taken.bit_length() + 7) // 8
        return self._highest.to_bytes(COUNTER_BYTES, "big") + self._taken.to_bytes(size, "big")
