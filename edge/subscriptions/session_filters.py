"""Filters of durable sessions, sent to their partitions in pieces, one after the other.

A thousand broad filters in one request block a storage node for tens of milliseconds. So a piece is sent after the
response to the one before. The connection stays paused until all are answered, so that later packets cannot overtake
them. Pieces of one SUBSCRIBE belong to one retained read, with the number of the first request.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.cluster.partition_requests import PartitionRequests
from edge.node.node import EdgeNode
from mqtt.reasons import ReasonCode
from wire.messages.control import Control
from wire.messages.sessions import SessionSubscribed, SessionSubscription, SessionUnsubscribed

__all__ = ["SessionFilters", "SubscribeCallback", "Unsubscribed"]

FILTERS_PER_PIECE = 32


class SubscribeCallback(Protocol):
    """Callback for added filters."""

    def subscribed(self, codes: list[int], existed: list[bool], read: int) -> None:
        """Handle the filters' codes, whether each existed before, and the number of the retained read."""


class Unsubscribed(Protocol):
    """Callback for removed filters."""

    def unsubscribed(self, codes: list[int]) -> None:
        """Handle the filters' codes."""


@dataclass(slots=True)
class _PendingSubscribe:
    """A SUBSCRIBE with some pieces answered."""

    filters: "SessionFilters"
    client: Client
    wanted: list[SessionSubscription]
    then: SubscribeCallback
    codes: list[int] = field(default_factory=list)
    existed: list[bool] = field(default_factory=list)
    read: int = 0

    def piece(self) -> list[SessionSubscription]:
        """Return the filters of the next request."""
        return self.wanted[len(self.codes) : len(self.codes) + FILTERS_PER_PIECE]

    def answered(self, answer: Control) -> None:
        """Handle the response to a piece."""
        self.filters.piece_subscribed(self, answer)


@dataclass(slots=True)
class _PendingUnsubscribe:
    """An UNSUBSCRIBE with some pieces answered."""

    filters: "SessionFilters"
    client: Client
    names: list[str]
    then: Unsubscribed
    revoked: bool
    codes: list[int] = field(default_factory=list)

    def piece(self) -> list[str]:
        """Return the filters of the next request."""
        return self.names[len(self.codes) : len(self.codes) + FILTERS_PER_PIECE]

    def answered(self, answer: Control) -> None:
        """Handle the response to a piece."""
        self.filters.piece_unsubscribed(self, answer)


class SessionFilters:
    """Adds and removes filters of durable sessions at their partitions.

    Attributes:
        on_left: Called with a client that disconnected during a revocation of its filters.
    """

    on_left: Callable[[Client], None]

    def __init__(self, node: EdgeNode, clients: Clients, requests: PartitionRequests) -> None:
        self._node = node
        self._clients = clients
        self._requests = requests

    def subscribe(self, client: Client, wanted: list[SessionSubscription], then: SubscribeCallback) -> None:
        """Add or replace subscriptions; ``then`` is called when all routes are in place, unless the client has
        disconnected.

        Filters without a request, because too many are pending, are refused with 0x97.
        """
        self._subscribe_piece(_PendingSubscribe(self, client, wanted, then))

    def _subscribe_piece(self, item: _PendingSubscribe) -> None:
        piece, partial = item.piece(), item.client.partial
        request = self._requests.of(item.client).subscribe(piece, item.read)
        request.partial = [at for at, one in enumerate(piece) if one.topic_filter in partial] if partial else []
        item.read = request.read
        if not self._requests.ask(request, item.answered, self._node.now):
            left = len(item.wanted) - len(item.codes)
            codes = item.codes + [int(ReasonCode.QUOTA_EXCEEDED)] * left
            item.then.subscribed(codes, item.existed + [False] * left, item.read)

    def piece_subscribed(self, item: _PendingSubscribe, answer: Control) -> None:
        """Request the next piece, or complete the SUBSCRIBE."""
        conn = item.client.conn
        if conn.closed or not isinstance(answer, SessionSubscribed):
            return
        if not len(item.piece()) == len(answer.reason_codes) == len(answer.existed):
            self._clients.error(conn, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
            return
        item.codes += answer.reason_codes
        item.existed += answer.existed
        if len(item.codes) < len(item.wanted):
            self._subscribe_piece(item)
        else:
            item.then.subscribed(item.codes, item.existed, item.read)

    def unsubscribe(self, client: Client, names: list[str], then: Unsubscribed, *, revoked: bool = False) -> None:
        """Remove subscriptions; ``then`` is called when all removals are committed, unless the client has disconnected.

        Args:
            revoked: Permissions were removed; its pending copies of shared subscriptions go to other members.
        """
        self._unsubscribe_piece(_PendingUnsubscribe(self, client, names, then, revoked))

    def _unsubscribe_piece(self, item: _PendingUnsubscribe) -> None:
        request = self._requests.of(item.client).unsubscribe(item.piece(), revoked=item.revoked)
        if not self._requests.ask(request, item.answered, self._node.now):
            self._clients.error(item.client.conn, ReasonCode.SERVER_BUSY)

    def piece_unsubscribed(self, item: _PendingUnsubscribe, answer: Control) -> None:
        """Request the next piece, or complete the UNSUBSCRIBE."""
        conn = item.client.conn
        if conn.closed and item.revoked:
            self.on_left(item.client)
        if conn.closed or not isinstance(answer, SessionUnsubscribed):
            return
        if len(answer.reason_codes) != len(item.piece()):
            self._clients.error(conn, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
            return
        item.codes += answer.reason_codes
        if len(item.codes) < len(item.names):
            self._unsubscribe_piece(item)
        else:
            item.then.unsubscribed(item.codes)
