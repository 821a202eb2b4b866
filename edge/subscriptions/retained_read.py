"""One SUBSCRIBE's reads of retained messages, and the pages that come for them.

| state of a page | what holds | next |
|---|---|---|
| read | it came; bounds and the rights of those who left its messages are checked | waiting |
| waiting | its client gets its messages as far as there is room | delivered, put back |
| put back | nothing of it is kept but the last topic that was delivered; it is read again | read |
| delivered | the next page of its partition is asked for | |
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
        self.open = len(wanted)  # not read to the end
        self.unread = deque(wanted)  # not begun
        self.starting = False
        self.paced = False  # what is not begun waits for its time
        self.over = False  # another one has taken its place
        self.requests = 0  # durable: DeliverRetained with messages, unanswered
        self.retry_s = 0.0  # durable: its queue has no room; how long until it is asked again


class RetainedRead:
    """One subscription's read."""

    __slots__ = (
        "asked_after",
        "asked_at",
        "deadline",
        "left",
        "limited",
        "partitions",
        "placements",
        "request",
        "reserved",
        "scanning",
        "subscription",
        "whole",
    )

    def __init__(self, subscription: SessionSubscription, whole: SubscribeReads, left: int, now: float) -> None:
        self.subscription = subscription
        self.whole = whole
        self.left = left  # how many more may be delivered
        self.asked_at = self.deadline = now  # the latter: when to look which nodes have not answered
        self.request = 0  # of its ReadRetainedAll
        self.partitions: set[int] = set()  # not yet read to the end
        self.scanning: set[int] = set()  # of those: whose nodes were asked and have not answered
        self.placements: dict[int, PartitionEntry] = {}  # as the map had them when nodes were asked
        self.reserved: dict[int, int] = {}  # partitions that were asked: messages that they may answer with
        self.asked_after: dict[int, str] = {}  # of those: topic behind which they were asked, if not from the first on
        self.limited = False  # more matched than may be delivered


class PageDelivery(Protocol):
    """Delivers a page, or has it read again."""

    def take(self, page: "ReadPage") -> bool:
        """Deliver as much of it as there is room for; False if some is left."""

    def put_back(self, page: "ReadPage") -> None:
        """Read the rest of it again later."""


class ReadPage:
    """A page that a partition answered with, on its way to the client of its read."""

    __slots__ = ("_delivery", "after", "answer", "arrived", "at", "messages", "partition", "read")

    def __init__(
        self, delivery: PageDelivery, read: RetainedRead, partition: int, answer: RetainedPage, after: str, now: float
    ) -> None:
        self._delivery = delivery
        self.read = read
        self.partition = partition
        self.answer = answer
        self.after = after  # topic behind which it was asked for
        self.arrived = now
        self.messages: list[RetainedMessage] | None = None  # that may be delivered; None: not checked yet
        self.at = 0  # of them, the next one

    @property
    def client(self) -> Client:
        """The client that waits for it."""
        return self.read.whole.client

    @property
    def rest(self) -> list[RetainedMessage]:
        """The messages that are left in it."""
        messages = self.answer.messages if self.messages is None else self.messages
        return messages[self.at :] if self.at else messages

    @property
    def count(self) -> int:
        """How many are left."""
        return len(self.answer.messages if self.messages is None else self.messages) - self.at

    @property
    def size(self) -> int:
        """Bytes that they take, about."""
        return sum(MESSAGE_BYTES + len(message.payload) for message in self.rest)

    @property
    def last_delivered(self) -> str:
        """Topic behind which the rest begins."""
        return self.messages[self.at - 1].topic if self.messages and self.at else self.after

    def take(self) -> bool:
        """Deliver as much of it as there is room for; False if some is left."""
        return self._delivery.take(self)

    def put_back(self) -> None:
        """Read the rest of it again later."""
        self._delivery.put_back(self)
