"""Retained messages that wait for their retained partitions: which are written at once, and in which order they go on.

One pipeline for each connection that has any under way. Messages leave it in the order in which they joined it: each
when it and all before it have an outcome. Pure. Source: MQTT 5.0 section 4.6; docs/protocol.md rule 7.11.
"""

from collections import deque
from typing import Generic, Protocol, TypeVar

__all__ = ["Pipeline", "Pipelines"]

MESSAGES_MAX = 128  # of a connection
CONNECTION_BYTES_MAX = 64 * 1024  # likewise: a slow subscriber gets so much more before its publisher is parked
COPIES_MAX = 2_000  # likewise, for subscribers at this edge: a turn may write all of them
BYTES_MAX = 16 * 1024 * 1024  # of all connections, above which each has one message under way


class _Message(Protocol):
    """A retained message.

    Attributes:
        outcome: Of its write; -1 until its partition has answered, and again once it was taken.
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
        """How many this edge delivers of it."""


M = TypeVar("M", bound=_Message)


class Pipeline(Generic[M]):
    """Those of one connection.

    Attributes:
        waiting: The message behind them that has to wait until there are none; its connection is parked with it.
        is_draining: Messages are being taken from it, further up in the call.
    """

    def __init__(self) -> None:
        self.waiting: M | None = None
        self.is_draining = False
        self._bytes = self._copies = 0
        self._messages: deque[M] = deque()
        self._topics: set[str] = set()

    def __len__(self) -> int:
        """Return how many are under way."""
        return len(self._messages)

    def has_room(self, message: M) -> bool:
        """Whether a message may join others."""
        if message.name in self._topics or len(self._messages) >= MESSAGES_MAX:
            return False
        return self._bytes + message.size <= CONNECTION_BYTES_MAX and self._copies + message.copies <= COPIES_MAX

    def join(self, message: M) -> None:
        """Add a message that is about to be written."""
        self._messages.append(message)
        self._bytes += message.size
        self._copies += message.copies
        self._topics.add(message.name)

    def leave(self, message: M) -> None:
        """Remove the first message, which has gone everywhere or was refused."""
        assert self._messages[0] is message, "a retained message overtook another one of its connection"
        self._messages.popleft()
        self._bytes -= message.size
        self._copies -= message.copies
        self._topics.remove(message.name)

    def take_outcome(self) -> tuple[M, int] | None:
        """Return the first message and the outcome of its write, once, when that is known."""
        if not self._messages or self._messages[0].outcome < 0:
            return None
        first = self._messages[0]
        outcome, first.outcome = first.outcome, -1
        return first, outcome


class Pipelines(Generic[M]):
    """Those of all connections, by number.

    Attributes:
        bytes: Held for all messages in them.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._pipelines: dict[int, Pipeline[M]] = {}

    def of(self, number: int) -> Pipeline[M] | None:
        """Return a connection's; None: it has no message under way."""
        return self._pipelines.get(number)

    def may_join(self, pipeline: Pipeline[M], message: M) -> bool:
        """Whether a message may be written before those in front of it are."""
        return self.bytes + message.size <= BYTES_MAX and pipeline.has_room(message)

    def join(self, number: int, message: M) -> None:
        """Add a connection's message."""
        self._pipelines.setdefault(number, Pipeline()).join(message)
        self.bytes += message.size

    def leave(self, number: int, message: M) -> Pipeline[M]:
        """Remove a connection's first message, and its pipeline with the last one; return that."""
        pipeline = self._pipelines[number]
        pipeline.leave(message)
        self.bytes -= message.size
        if not len(pipeline):
            del self._pipelines[number]
        return pipeline
