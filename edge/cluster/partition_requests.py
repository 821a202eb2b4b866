"""Requests of this edge to partitions: kept until answered, sent again in order after a change of the primary.

Each request is idempotent at the partition. It is sent only when this node's map names a primary and a link to it
exists; until then it is queued, bounded. Rules: docs/protocol.md section 6.
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

RETRY_S = 0.5  # after "moved" without a newer map here, and for unanswered requests


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
    sent_epoch: int = -1  # partition_epoch of the last sending; -1: not sent
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
        self._batch: dict[str, list[_Pending]] | None = None  # node -> requests to send at the end of ``together``
        self._retry_at = inf  # lower bound of all ``retry_at``: no scan of the partitions before it

    def __len__(self) -> int:
        return len(self._by_number)

    def next_number(self) -> int:
        """Return a number for the next request."""
        self._next += 1
        return self._next

    def of(self, client: _Session) -> "SessionRequests":
        """Return a builder for one request of a durable session."""
        return SessionRequests(self.next_number(), client)

    def ask(self, message: Control | ConnectRequest, on_answer: Callable[[Any], None], now: float) -> bool:
        """Send a request to its partition's primary, now or when there is one.

        Args:
            message: With ``request`` from ``next_number`` and ``partition``; its epoch is filled in here.
            on_answer: Called once with the response; never for "moved".
            now: For the retry.

        Returns:
            False if too many are unanswered: the request is not kept, and the client must be refused.
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
            self._schedule_retry(pending, now + RETRY_S)
            return
        placement = cluster_map.partitions[partition]
        pending.message.partition_epoch = placement.epoch  # type: ignore[union-attr]
        if isinstance(pending.message, OpenSession):
            pending.message.answered_below = next(iter(self._pending[partition]))
        if placement.primary not in pending.asked:
            pending.asked += (placement.primary,)
        if isinstance(pending.message, OpenSession | CloseSession):
            if self._batch is not None:
                self._batch.setdefault(placement.primary, []).append(pending)
            elif not self._node.send_connect_requests(placement.primary, [pending.message]):
                self._schedule_retry(pending, now + RETRY_S)
                return
        elif not self._node.tell(placement.primary, pending.message):
            self._schedule_retry(pending, now + RETRY_S)
            return
        pending.sent_epoch = placement.epoch
        pending.retry_at = inf

    def _schedule_retry(self, pending: _Pending, at: float) -> None:
        pending.retry_at = at
        self._retry_at = min(self._retry_at, at)

    @contextmanager
    def together(self, now: float) -> Iterator[None]:
        """Collect the requests of connections in the block and send them at its end: batches are much cheaper."""
        assert self._batch is None, "requests are gathered already"
        batch = self._batch = {}
        try:
            yield
        finally:
            self._batch = None
            self._send_batch(batch, now)

    def _send_batch(self, by_node: dict[str, list[_Pending]], now: float) -> None:
        """Send in order while the links have capacity; retry the rest."""
        for node, batch in by_node.items():
            sent = self._node.send_connect_requests(node, [pending.message for pending in batch])  # type: ignore[misc]
            for pending in batch[sent:]:
                pending.sent_epoch = -1
                self._schedule_retry(pending, now + RETRY_S)

    def answered(self, number: int, answer: Control | ConnectAnswer, node: str) -> bool:
        """Handle a response of a node; False if no request expects it from there."""
        pending = self._by_number.get(number)
        if pending is None or node not in pending.asked or type(answer) not in ANSWERS[type(pending.message)]:
            return False
        self._forget(number)
        pending.on_answer(answer)
        return True

    def moved(self, number: int, now: float, node: str) -> None:
        """Retry when the local map changes, or soon: the node is not the primary at that epoch."""
        pending = self._by_number.get(number)
        if pending is not None and node in pending.asked:
            pending.sent_epoch = -1
            self._schedule_retry(pending, now + RETRY_S / 10)

    def placement_changed(self, partition: int, now: float) -> None:
        """Send all unanswered requests again, in order: the map names another primary or epoch."""
        for pending in list(self._pending.get(partition, {}).values()):
            self._send(partition, pending, now)

    def node_ready(self, node: str, now: float) -> None:
        """Send queued requests over a new link to a storage node."""
        placements = self._node.map.partitions
        for partition, requests in self._pending.items():
            if partition < len(placements) and placements[partition].primary == node:
                for pending in list(requests.values()):
                    if pending.sent_epoch < 0:
                        self._send(partition, pending, now)

    def tick(self, now: float) -> None:
        """Send requests with a due retry again."""
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
        """Remove a request without effect, such as a retained read."""
        if number in self._by_number:
            self._forget(number)

    def _forget(self, number: int) -> None:
        message = self._by_number.pop(number).message
        del self._pending[message.partition][number]  # type: ignore[union-attr]


class SessionRequests:
    """Builds one request of a durable session; the partition's epoch is filled in on sending."""

    __slots__ = ("_number", "_session")

    def __init__(self, number: int, session: _Session) -> None:
        self._number = number
        self._session = session

    def _leading(self) -> tuple[int, int, int, int, int]:
        session = self._session
        return self._number, session.partition, 0, session.session, session.owner_epoch

    def record_inbound(self, packet_identifier: int, picks: list[SharePick]) -> RecordInbound:
        """Record a QoS 2 packet identifier, and the picks of its copies for shared subscriptions."""
        return RecordInbound(*self._leading(), packet_identifier, picks)

    def release_inbound(self, packet_identifier: int) -> ReleaseInbound:
        """Release a QoS 2 packet identifier."""
        return ReleaseInbound(*self._leading(), packet_identifier)

    def subscribe(self, subscriptions: list[SessionSubscription], read: int) -> SubscribeSession:
        """Add subscriptions of the retained read ``read``; 0: the read has this request's number."""
        return SubscribeSession(*self._leading(), subscriptions, read=read or self._number)

    def unsubscribe(self, topic_filters: list[str], *, revoked: bool) -> UnsubscribeSession:
        """Remove subscriptions; ``revoked``: by authorization, not by the client."""
        return UnsubscribeSession(*self._leading(), topic_filters, revoked)

    def deliver_retained(
        self, messages: list[RetainedMessage], read: int, *, done: bool, identifier: int = 0
    ) -> DeliverRetained:
        """Queue retained messages of a read; 0: the read has this request's number, and the partition starts to hold
        for it.
        """
        return DeliverRetained(*self._leading(), messages, done, read or self._number, identifier)
