"""Requests of this edge to partitions: kept until answered, sent again in order when a partition gets a new primary.

Every one of them is idempotent at the partition. A request leaves only when this node's map names a primary and its
link exists; before that it waits here, bounded. Rules: docs/protocol.md section 6.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, Protocol

import msgspec

from edge.node.node import EdgeNode
from wire.links.allowed import ANSWERS
from wire.messages.connects import ConnectAnswer, ConnectRequest
from wire.messages.control import Control
from wire.messages.hello import first_number
from wire.messages.redispatch import SharePick
from wire.messages.retained import DeliverRetained, RetainedMessage
from wire.messages.sessions import (
    CloseSession,
    OpenSession,
    RecordInbound,
    ReleaseInbound,
    SessionSubscription,
    SubscribeSession,
    UnsubscribeSession,
)

__all__ = ["PartitionRequests", "SessionRequests"]

RETRY_S = 0.5  # after "moved" without a newer map here, and for what was never answered


class _Request(Protocol):
    request: int
    partition: int
    partition_epoch: int


class _Session(Protocol):
    """A connection of a durable session."""

    partition: int
    session: int
    owner_epoch: int


class _Pending(msgspec.Struct, eq=False):
    message: Control | ConnectRequest
    on_answer: Callable[[Any], None]
    sent_epoch: int = -1  # partition_epoch under which it left; -1: not yet
    retry_at: float = inf
    asked: tuple[str, ...] = ()  # nodes that may answer it


class PartitionRequests:
    """All unanswered requests, by partition, in order."""

    def __init__(self, node: EdgeNode) -> None:
        self._node = node
        self._max = node.limits.requests_max
        self._next = first_number(node.incarnation)
        self._pending: dict[int, dict[int, _Pending]] = {}  # partition -> request -> pending
        self._by_number: dict[int, _Pending] = {}
        self._together: dict[str, list[_Pending]] | None = None  # node -> what leaves for it at the end of ``together``
        self._retry_at = inf  # not after the first ``retry_at``: no look at all partitions before it

    def __len__(self) -> int:
        return len(self._by_number)

    def next_number(self) -> int:
        """Return a number for the next request."""
        self._next += 1
        return self._next

    def of(self, client: _Session) -> "SessionRequests":
        """Return what makes requests of a durable session."""
        return SessionRequests(self.next_number(), client)

    def ask(self, message: Control | ConnectRequest, on_answer: Callable[[Any], None], now: float) -> bool:
        """Send a request to its partition's primary, now or when there is one.

        Args:
            message: With ``request`` from ``next_number`` and ``partition``; its epoch is filled in here.
            on_answer: Called once with the answer; never for "moved".
            now: For the retry.
        Returns:
            False if too many are unanswered: nothing was kept, and the client is to be refused.
        """
        if len(self._by_number) >= self._max:
            return False
        partition: int = message.partition  # type: ignore[union-attr]
        number: int = message.request  # type: ignore[union-attr]
        pending = _Pending(message, on_answer)
        requests = self._pending.get(partition)
        if requests is None:
            requests = self._pending[partition] = {}
        requests[number] = pending
        self._by_number[number] = pending
        self._send(partition, pending, now)
        return True

    def _send(self, partition: int, pending: _Pending, now: float) -> None:
        cluster_map = self._node.map
        if partition >= len(cluster_map.partitions) or not cluster_map.partitions[partition].primary:
            self._again(pending, now + RETRY_S)
            return
        placement = cluster_map.partitions[partition]
        pending.message.partition_epoch = placement.epoch  # type: ignore[union-attr]
        if isinstance(pending.message, OpenSession):
            pending.message.answered_below = next(iter(self._pending[partition]))
        if placement.primary not in pending.asked:
            pending.asked += (placement.primary,)
        if isinstance(pending.message, OpenSession | CloseSession):
            if self._together is not None:
                self._together.setdefault(placement.primary, []).append(pending)
            elif not self._node.ask_connects(placement.primary, [pending.message]):
                self._again(pending, now + RETRY_S)
                return
        elif not self._node.tell(placement.primary, pending.message):
            self._again(pending, now + RETRY_S)
            return
        pending.sent_epoch = placement.epoch
        pending.retry_at = inf

    def _again(self, pending: _Pending, at: float) -> None:
        pending.retry_at = at
        self._retry_at = min(self._retry_at, at)

    @contextmanager
    def together(self, now: float) -> Iterator[None]:
        """Keep what connections ask in the block, and send it at its end: what leaves together costs a fraction."""
        assert self._together is None, "requests are gathered already"
        gathered = self._together = {}
        try:
            yield
        finally:
            self._together = None
            self._send_together(gathered, now)

    def _send_together(self, by_node: dict[str, list[_Pending]], now: float) -> None:
        """Send in order and as far as there is room; what stays is asked again."""
        for node, gathered in by_node.items():
            told = self._node.ask_connects(node, [pending.message for pending in gathered])  # type: ignore[misc]
            for pending in gathered[told:]:
                pending.sent_epoch = -1
                self._again(pending, now + RETRY_S)

    def answered(self, number: int, answer: Control | ConnectAnswer, node: str) -> bool:
        """Take an answer of a node; False if nobody waits for it, or not for this one from there."""
        pending = self._by_number.get(number)
        if pending is None or node not in pending.asked or type(answer) not in ANSWERS[type(pending.message)]:
            return False
        self._forget(number)
        pending.on_answer(answer)
        return True

    def moved(self, number: int, now: float, node: str) -> None:
        """The node asked is not the primary at that epoch: ask again when the map here changes, or soon."""
        pending = self._by_number.get(number)
        if pending is not None and node in pending.asked:
            pending.sent_epoch = -1
            self._again(pending, now + RETRY_S / 10)

    def placement_changed(self, partition: int, now: float) -> None:
        """The map names another primary or epoch: send everything unanswered again, in order."""
        for pending in list(self._pending.get(partition, {}).values()):
            self._send(partition, pending, now)

    def node_ready(self, node: str, now: float) -> None:
        """A link to a storage node was made: send what waited for it."""
        placements = self._node.map.partitions
        for partition, requests in self._pending.items():
            if partition < len(placements) and placements[partition].primary == node:
                for pending in list(requests.values()):
                    if pending.sent_epoch < 0:
                        self._send(partition, pending, now)

    def tick(self, now: float) -> None:
        """Send again what could not be sent."""
        if now < self._retry_at:
            return
        self._retry_at = inf
        for partition, requests in self._pending.items():
            for pending in list(requests.values()):
                if pending.retry_at <= now:
                    self._send(partition, pending, now)
                else:
                    self._retry_at = min(self._retry_at, pending.retry_at)

    def cancel(self, number: int) -> None:
        """Nobody waits any more (a question without effect, such as a retained read)."""
        if number in self._by_number:
            self._forget(number)

    def _forget(self, number: int) -> None:
        message = self._by_number.pop(number).message
        del self._pending[message.partition][number]  # type: ignore[union-attr]


class SessionRequests:
    """Makes one request of a durable session; the partition's epoch is filled in when it leaves."""

    __slots__ = ("_number", "_session")

    def __init__(self, number: int, session: _Session) -> None:
        self._number = number
        self._session = session

    def _leading(self) -> tuple[int, int, int, int, int]:
        session = self._session
        return self._number, session.partition, 0, session.session, session.owner_epoch

    def record_inbound(self, packet_identifier: int, picks: list[SharePick]) -> RecordInbound:
        """Record a QoS 2 packet identifier, and where its copies for shared groups go."""
        return RecordInbound(*self._leading(), packet_identifier, picks)

    def release_inbound(self, packet_identifier: int) -> ReleaseInbound:
        """Forget a QoS 2 packet identifier."""
        return ReleaseInbound(*self._leading(), packet_identifier)

    def subscribe(self, subscriptions: list[SessionSubscription], read: int) -> SubscribeSession:
        """Add subscriptions, which belong to the retained read that ``read`` names; 0: this request names it."""
        return SubscribeSession(*self._leading(), subscriptions, read=read or self._number)

    def unsubscribe(self, topic_filters: list[str], *, revoked: bool) -> UnsubscribeSession:
        """Remove subscriptions; ``revoked``: not the client did, it may not have them."""
        return UnsubscribeSession(*self._leading(), topic_filters, revoked)

    def deliver_retained(
        self, messages: list[RetainedMessage], read: int, *, done: bool, identifier: int = 0
    ) -> DeliverRetained:
        """Queue retained messages of a read; 0: this request names it, and the partition begins to hold for it."""
        return DeliverRetained(*self._leading(), messages, done, read or self._number, identifier)
