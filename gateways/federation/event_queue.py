"""Events of an agent queued for its next iteration, bounded by number and bytes.

A neighbour chooses the length of its frames, so a bound of their number is not sufficient. If the queue is full,
neighbours are not read until an iteration has emptied it. QoS 0 messages of the broker are dropped by the reader, and
counted; QoS 1 and 2 messages are accepted up to the Receive Maximum. Sans-IO.
"""

from __future__ import annotations

from gateways.federation.events import Captured, Event, NeighbourFrame

__all__ = ["EVENTS_BYTES_MAX", "EVENTS_MAX", "EventQueue"]

EVENTS_MAX = 4_096
EVENTS_BYTES_MAX = 4 * 1024 * 1024  # may be exceeded by one read


class EventQueue:
    """Events in order.

    Attributes:
      octets: Bytes of queued frames and messages.
      octets_most: Maximum so far.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self.octets = 0
        self.octets_most = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def is_full(self) -> bool:
        """Whether reading must pause and QoS 0 messages are dropped."""
        return len(self._events) > EVENTS_MAX or self.octets >= EVENTS_BYTES_MAX

    def put(self, event: Event) -> None:
        """Add an event, even to a full queue, since it has been read already."""
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
