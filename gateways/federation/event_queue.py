"""Events of an agent that wait for its next turn, bounded by their number and by their bytes.

A neighbour chooses how long its frames are, so their number alone bounds nothing. Policy when full: neighbours are not
read until a turn has taken what waits; messages of QoS 0 of the broker are dropped by who reads them, and counted;
those of QoS 1 and 2 are taken up to the Receive Maximum. Sans-IO.
"""

from __future__ import annotations

from gateways.federation.events import Captured, Event, NeighbourFrame

__all__ = ["EVENTS_BYTES_MAX", "EVENTS_MAX", "EventQueue"]

EVENTS_MAX = 4_096
EVENTS_BYTES_MAX = 4 * 1024 * 1024  # a frame that came in one read with the last of them is taken beside


class EventQueue:
    """Events in their order.

    Attributes:
        octets: Of frames and messages that wait.
        octets_most: The most that ever waited.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self.octets = 0
        self.octets_most = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read that may wait, or may be dropped."""
        return len(self._events) > EVENTS_MAX or self.octets >= EVENTS_BYTES_MAX

    def put(self, event: Event) -> None:
        """Add an event; a full queue takes it too, for it has been read already."""
        self._events.append(event)
        self.octets += _octets(event)
        self.octets_most = max(self.octets_most, self.octets)

    def take(self) -> list[Event]:
        """Remove and return all events."""
        events, self._events, self.octets = self._events, [], 0
        return events


def _octets(event: Event) -> int:
    if isinstance(event, NeighbourFrame):
        return len(event.data)
    if isinstance(event, Captured):
        return len(event.topic) + len(event.payload)
    return 0
