"""Pending requests of other nodes, as records with sender, request and arrival time.

``PendingUntilMap`` keeps a request until this node's map has changed; ``PendingUntilServing`` keeps one until its
partition serves. Both are bounded and refuse further requests. Records contain no code: the core dispatches each by
its type, so pending requests can be printed.
"""

from collections import deque
from typing import NamedTuple

from wire.messages.batches import PublishMessage, PushAck
from wire.messages.disconnected_sessions import ListDisconnected, RevokeDisconnected
from wire.messages.hello import PeerKey
from wire.messages.replication import Append, TransferSlice
from wire.messages.retained import DeliverRetained, ReadRetained
from wire.messages.sessions import (
    CloseSession,
    ListFilters,
    OpenSession,
    RecordInbound,
    ReleaseInbound,
    SubscribeSession,
    UnsubscribeSession,
)

__all__ = [
    "PartitionRequest",
    "PendingUntilServing",
    "Waiting",
    "WaitingAck",
    "WaitingBytes",
    "WaitingCopy",
    "WaitingMessage",
    "WaitingRequest",
    "WaitingScan",
]

PartitionRequest = (
    OpenSession
    | CloseSession
    | SubscribeSession
    | UnsubscribeSession
    | RecordInbound
    | ReleaseInbound
    | ListFilters
    | ReadRetained
    | DeliverRetained
    | ListDisconnected
    | RevokeDisconnected
)

MESSAGES_BYTES_MAX = 64 * 1024 * 1024  # of messages pending until their partitions serve, for the whole node
MESSAGE_BYTES = 256  # of a pending message beside topic and payload
REQUEST_BYTES = 1024  # of a pending request, roughly


class WaitingMessage(NamedTuple):
    """A message for one partition."""

    since: float
    peer: PeerKey
    partition: int
    epoch: int  # partition_epoch that its sender knew
    record: PublishMessage

    @property
    def size(self) -> int:
        """Bytes, roughly."""
        return len(self.record.payload) + len(self.record.topic) + MESSAGE_BYTES


class WaitingRequest(NamedTuple):
    """A request of an edge to one partition."""

    since: float
    peer: PeerKey
    request: PartitionRequest

    @property
    def size(self) -> int:
        """Bytes, roughly."""
        return REQUEST_BYTES


class WaitingAck(NamedTuple):
    """An edge's acknowledgement of pushed entries."""

    since: float
    peer: PeerKey
    ack: PushAck


class WaitingScan(NamedTuple):
    """A partition's part of a retained read of all partitions."""

    since: float
    peer: PeerKey
    request: ReadRetained


class WaitingCopy(NamedTuple):
    """A primary's message to a backup, under an epoch that the backup's map does not have yet."""

    since: float
    peer: str
    message: Append | TransferSlice

    @property
    def size(self) -> int:
        """Bytes of its rows."""
        if isinstance(self.message, Append):
            return sum(map(len, self.message.rows))
        return sum(len(key) + len(value) for key, value in self.message.rows)


Waiting = WaitingMessage | WaitingRequest | WaitingAck | WaitingScan


class WaitingBytes:
    """Bytes of messages pending until their partitions serve, of all partitions of a node."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = 0


class PendingUntilServing:
    """Requests to one partition that are pending until it serves.

    Messages forwarded by a former primary come first: they are older than all that edges sent here.

    Args:
        most: Maximum number of records of each kind, forwarded messages and others.
        octets: Shared byte count of all partitions of the node, ``MESSAGES_BYTES_MAX`` at most.
    """

    __slots__ = ("_came", "_forwarded", "_most", "_octets", "_waiting")

    def __init__(self, most: int, octets: WaitingBytes) -> None:
        self._most = most
        self._octets = octets
        self._forwarded: deque[WaitingMessage] = deque()
        self._waiting: deque[Waiting] = deque()
        self._came = 0  # arrivals since ``take_arrivals``

    def __len__(self) -> int:
        return len(self._forwarded) + len(self._waiting)

    def __bool__(self) -> bool:
        return bool(self._waiting or self._forwarded)

    def keep(self, waiting: Waiting) -> bool:
        """Keep a request; False if too many are pending: refuse it."""
        if len(self._waiting) >= self._most or not self._reserve(waiting):
            return False
        self._waiting.append(waiting)
        self._came += 1
        return True

    def keep_forwarded(self, waiting: WaitingMessage) -> bool:
        """Keep a message that the former primary forwarded; False if too many are pending: drop it."""
        if len(self._forwarded) >= self._most or not self._reserve(waiting):
            return False
        self._forwarded.append(waiting)
        return True

    def _reserve(self, waiting: Waiting) -> bool:
        """Reserve the bytes of a message if they are available; requests are few and small."""
        if isinstance(waiting, WaitingMessage):
            if self._octets.used + waiting.size > MESSAGES_BYTES_MAX:
                return False
            self._octets.used += waiting.size
        return True

    def begin(self) -> None:
        """Reset the count of arrivals: the partition serves from now on."""
        self._came = 0

    def take_arrivals(self) -> int:
        """Return the number of arrivals since the last call: at least as many must be taken, or the queue fills."""
        came, self._came = self._came, 0
        return came

    def take(self) -> Waiting | None:
        """Return the next request, None if no other is pending."""
        if not self:
            return None
        waiting = self._forwarded.popleft() if self._forwarded else self._waiting.popleft()
        if isinstance(waiting, WaitingMessage):
            self._octets.used -= waiting.size
        return waiting

    def leave(self, since: float) -> list[WaitingMessage]:
        """Remove all requests, since this node is no longer primary; return, in order, messages since ``since``."""
        unserved = []
        passed_on = len(self._forwarded)
        while (waiting := self.take()) is not None:
            if passed_on > 0:
                passed_on -= 1
            elif isinstance(waiting, WaitingMessage) and waiting.since >= since:
                unserved.append(waiting)
        return unserved
