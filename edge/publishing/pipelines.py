"""Pipelines of retained messages whose write to the retained partition is in flight.

Each connection with such messages has one pipeline. Messages leave it in the order in which they joined it: each when
it and all earlier ones have an outcome. Pure. Source: MQTT 5.0 section 4.6; docs/protocol.md rule 7.11.
"""

from collections import deque
from typing import Generic, Protocol, TypeVar

__all__ = ["Pipeline", "Pipelines"]

MESSAGES_MAX = 128  # per connection
CONNECTION_BYTES_MAX = 64 * 1024  # per connection: a slow subscriber gets this much more before its publisher is parked
COPIES_MAX = 2_000  # per connection, for subscribers at this edge: one iteration may write all of them
BYTES_MAX = 16 * 1024 * 1024  # of all connections; above it each connection has one write in flight


class _Message(Protocol):
    """A retained message.

    Attributes:
        outcome: Reason code of its write; -1 before the partition replies and after ``take_outcome``.
    """

    outcome: int

    @property
    def name(self) -> str:
        """The topic."""

    @property
    def size(self) -> int:
        """Bytes that are held for it."""

    @property
    def copies(self) -> int:
        """Number of copies for subscribers at this edge."""


M = TypeVar("M", bound=_Message)


class Pipeline(Generic[M]):
    """The in-flight retained messages of one connection.

    Attributes:
        waiting: The next message, which must wait until the pipeline is empty; its connection is parked.
        is_draining: A caller further up is already taking messages from it.
    """

    def __init__(self) -> None:
        self.waiting: M | None = None
        self.is_draining = False
        self._bytes = self._copies = 0
        self._messages: deque[M] = deque()
        self._topics: set[str] = set()

    def __len__(self) -> int:
        """Return the number of in-flight messages."""
        return len(self._messages)

    def has_room(self, message: M) -> bool:
        """Return whether a message may be added to the others."""
        if message.name in self._topics or len(self._messages) >= MESSAGES_MAX:
            return False
        return self._bytes + message.size <= CONNECTION_BYTES_MAX and self._copies + message.copies <= COPIES_MAX

    def join(self, message: M) -> None:
        """Add a message before its write."""
        self._messages.append(message)
        self._bytes += message.size
        self._copies += message.copies
        self._topics.add(message.name)

    def leave(self, message: M) -> None:
        """Remove the first message after its fan-out or rejection."""
        assert self._messages[0] is message, "a retained message overtook another one of its connection"
        self._messages.popleft()
        self._bytes -= message.size
        self._copies -= message.copies
        self._topics.remove(message.name)

    def take_outcome(self) -> tuple[M, int] | None:
        """Return the first message and the outcome of its write, once, as soon as it is known."""
        if not self._messages or self._messages[0].outcome < 0:
            return None
        first = self._messages[0]
        outcome, first.outcome = first.outcome, -1
        return first, outcome


class Pipelines(Generic[M]):
    """The pipelines of all connections, by connection number.

    Attributes:
        bytes: Held for all messages in them.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._pipelines: dict[int, Pipeline[M]] = {}

    def of(self, number: int) -> Pipeline[M] | None:
        """Return a connection's pipeline; None: it has no message in flight."""
        return self._pipelines.get(number)

    def may_join(self, pipeline: Pipeline[M], message: M) -> bool:
        """Return whether a message may be written before earlier writes have completed."""
        return self.bytes + message.size <= BYTES_MAX and pipeline.has_room(message)

    def join(self, number: int, message: M) -> None:
        """Add a connection's message."""
        self._pipelines.setdefault(number, Pipeline()).join(message)
        self.bytes += message.size

    def leave(self, number: int, message: M) -> Pipeline[M]:
        """Remove a connection's first message and return its pipeline; an empty pipeline is deleted."""
        pipeline = self._pipelines[number]
        pipeline.leave(message)
        self.bytes -= message.size
        if not len(pipeline):
            del self._pipelines[number]
        return pipeline
