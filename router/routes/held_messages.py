"""Messages to a shard that wait until it may answer: in order, bounded in number and bytes.

Beyond a bound the oldest are dropped, and their senders repeat them. The bound protects against any holder of a
certificate while a shard waits for reports.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from wire.messages.routes import AddRoutes, Invalidated, RemoveRoutes, ReportRoutes, Resolve

__all__ = ["SenderMessages", "octets_of"]

HELD_MAX = 10_000  # messages
HELD_BYTES_MAX = 4 * 1024 * 1024  # of their names
NAME_BYTES = 64  # of a topic or filter besides its text

M = TypeVar("M", Resolve, AddRoutes | RemoveRoutes)


class SenderMessages(Generic[M]):
    """Messages, each with its sender.

    Attributes:
        dropped: Number of messages dropped at a bound.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._items: deque[tuple[str, M, int]] = deque()  # peer, message, bytes
        self._octets = 0

    def __bool__(self) -> bool:
        return bool(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def append(self, peer: str, message: M) -> None:
        """Queue a message."""
        octets = octets_of(message)
        self._items.append((peer, message, octets))
        self._octets += octets
        while len(self._items) > HELD_MAX or (self._octets > HELD_BYTES_MAX and len(self._items) > 1):
            self.popleft()
            self.dropped += 1

    def popleft(self) -> tuple[str, M]:
        """Remove and return the oldest message."""
        peer, message, octets = self._items.popleft()
        self._octets -= octets
        return peer, message

    def drop(self, chosen: Callable[[str, M], bool]) -> None:
        """Drop the messages that ``chosen`` selects."""
        self._items = deque(item for item in self._items if not chosen(item[0], item[1]))
        self._octets = sum(octets for _, _, octets in self._items)


def octets_of(message: Resolve | AddRoutes | RemoveRoutes | ReportRoutes | Invalidated) -> int:
    """Return the approximate memory of a message to a shard, in bytes."""
    if isinstance(message, Invalidated):
        return NAME_BYTES
    if isinstance(message, Resolve):
        names = message.topics
    elif isinstance(message, ReportRoutes):
        names = [route.topic_filter for report in message.reports for route in report.routes]
    else:
        names = [route.topic_filter for route in message.routes]
    return NAME_BYTES * (1 + len(names)) + sum(map(len, names))
