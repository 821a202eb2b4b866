"""One SUBSCRIBE's reads of retained messages, and their pages.

| state of a page | meaning | next |
|---|---|---|
| read | it was received; bounds and the permissions of its messages' users are checked | queued |
| queued | its messages are delivered as far as the client accepts them | delivered, put back |
| put back | only the last delivered topic is kept; it is read again | read |
| delivered | the next page of its partition is requested | |
"""

from collections import deque
from typing import Protocol

from edge.clients.client import Client
from edge.subscriptions.live_message_holds import Hold
from edge.subscriptions.retained_pages import MESSAGE_BYTES
from wire.messages.cluster_map import PartitionEntry
from wire.messages.retained import RetainedMessage, RetainedPage
from wire.messages.sessions import SessionSubscription

__all__ = ["PageDelivery", "ReadPage", "RetainedRead", "SubscribeReads"]


class SubscribeReads:
    """One SUBSCRIBE's reads."""

    __slots__ = (
        "client",
        "durable",
        "hold",
        "number",
        "open",
        "over",
        "paced",
        "requests",
        "retry_s",
        "starting",
        "unread",
        "wanted",
    )

    def __init__(
        self, client: Client, durable: bool, hold: Hold | None, wanted: list[SessionSubscription], number: int = 0
    ) -> None:
        self.client = client
        self.durable = durable
        self.hold = hold
        self.wanted = wanted
        self.number = number  # durable: the request that made the partition hold live messages
        self.open = len(wanted)  # incomplete reads
        self.unread = deque(wanted)  # not started
        self.starting = False
        self.paced = False  # unstarted reads wait for the rate limit
        self.over = False  # replaced by another one
        self.requests = 0  # durable: DeliverRetained with messages, unanswered
        self.retry_s = 0.0  # durable: its queue is full; delay of the next request


class RetainedRead:
    """One subscription's read."""

    __slots__ = (
        "deadline",
        "left",
        "limited",
        "partitions",
        "placements",
        "request",
        "requested_after",
        "requested_at",
        "reserved",
        "scanning",
        "subscription",
        "whole",
    )

    def __init__(self, subscription: SessionSubscription, whole: SubscribeReads, left: int, now: float) -> None:
        self.subscription = subscription
        self.whole = whole
        self.left = left  # how many more may be delivered
        self.requested_at = self.deadline = now  # deadline: time of the next check for unresponsive nodes
        self.request = 0  # of its ReadRetainedAll
        self.partitions: set[int] = set()  # incomplete ones
        self.scanning: set[int] = set()  # of those, the ones at nodes with an unanswered request
        self.placements: dict[int, PartitionEntry] = {}  # placements at the time of the request
        self.reserved: dict[int, int] = {}  # partitions with requests: reserved messages of the response
        self.requested_after: dict[int, str] = {}  # of those: topic of the cursor, if not at the start
        self.limited = False  # more matches than may be delivered


class PageDelivery(Protocol):
    """Delivers a page, or reads it again."""

    def take(self, page: "ReadPage") -> bool:
        """Deliver as much of it as accepted; False if some is left."""

    def put_back(self, page: "ReadPage") -> None:
        """Read the rest of it again later."""


class ReadPage:
    """A page of a partition, to be delivered to the client of its read."""

    __slots__ = ("_delivery", "after", "answer", "arrived", "at", "messages", "partition", "read")

    def __init__(
        self, delivery: PageDelivery, read: RetainedRead, partition: int, answer: RetainedPage, after: str, now: float
    ) -> None:
        self._delivery = delivery
        self.read = read
        self.partition = partition
        self.answer = answer
        self.after = after  # topic of its request's cursor
        self.arrived = now
        self.messages: list[RetainedMessage] | None = None  # deliverable ones; None: not checked yet
        self.at = 0  # index of the next one

    @property
    def client(self) -> Client:
        """The receiving client."""
        return self.read.whole.client

    @property
    def rest(self) -> list[RetainedMessage]:
        """The messages that are left in it."""
        messages = self.answer.messages if self.messages is None else self.messages
        return messages[self.at :] if self.at else messages

    @property
    def count(self) -> int:
        """Number of messages left."""
        return len(self.answer.messages if self.messages is None else self.messages) - self.at

    @property
    def size(self) -> int:
        """Their approximate memory in bytes."""
        return sum(MESSAGE_BYTES + len(message.payload) for message in self.rest)

    @property
    def last_delivered(self) -> str:
        """Cursor of the rest."""
        return self.messages[self.at - 1].topic if self.messages and self.at else self.after

    def take(self) -> bool:
        """Deliver as much of it as accepted; False if some is left."""
        return self._delivery.take(self)

    def put_back(self) -> None:
        """Read the rest of it again later."""
        self._delivery.put_back(self)
