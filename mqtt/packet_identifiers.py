# cython: annotation_typing=False
"""Packet identifiers of one session (section 2.2.1). The session's owner knows their packets."""

__all__ = ["PACKET_IDENTIFIER_MAX", "PacketIdentifiers"]

PACKET_IDENTIFIER_MAX = 65_535


class PacketIdentifiers:
    """Identifiers that the broker assigns to packets of one session (section 2.2.1).

    They count up from 1 and wrap; one in use is not assigned again [MQTT-2.2.1-3] [MQTT-2.2.1-4].
    """

    __slots__ = ("_in_use", "last")

    def __init__(self) -> None:
        self._in_use: set[int] = set()
        self.last = 0

    def __len__(self) -> int:
        """Return the number of identifiers in use."""
        return len(self._in_use)

    def __contains__(self, packet_identifier: int) -> bool:
        return packet_identifier in self._in_use

    def allocate(self) -> int | None:
        """Return the next free identifier, now in use; None when all 65 535 are."""
        if len(self._in_use) == PACKET_IDENTIFIER_MAX:
            return None
        candidate = self.last
        while True:  # ends: one is free
            candidate = candidate % PACKET_IDENTIFIER_MAX + 1
            if candidate not in self._in_use:
                break
        self.last = candidate
        self._in_use.add(candidate)
        return candidate

    def claim(self, packet_identifier: int) -> bool:
        """Mark an identifier of a restored session as in use; return False if it already was."""
        if packet_identifier in self._in_use:
            return False
        self._in_use.add(packet_identifier)
        return True

    def release(self, packet_identifier: int) -> bool:
        """Make an identifier free again; return False if it was not in use."""
        if packet_identifier not in self._in_use:
            return False
        self._in_use.discard(packet_identifier)
        return True
