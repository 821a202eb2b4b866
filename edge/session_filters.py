"""Filters of durable sessions, which their partitions keep: many go there in pieces, one after the other.

A thousand broad filters in one request stop a storage node for tens of milliseconds. So a piece leaves when the one
before it was answered. Nothing of the same connection overtakes them: it stays parked until all are answered. Pieces of
one SUBSCRIBE belong to one retained read, which is named by the first.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from edge.client import Client
from edge.partition_requests import RequestsFull
from mqtt.reasons import ReasonCode
from wire.messages import (
    Control,
    SessionSubscribed,
    SessionUnsubscribed,
    SubscribeSession,
    Subscription,
    UnsubscribeSession,
)

if TYPE_CHECKING:
    from edge.core import EdgeCore

__all__ = ["SessionFilters"]

FILTERS_PER_PIECE = 32

Subscribed = Callable[[list[int], list[bool], int], None]  # codes, whether each stood before, name of the read
Unsubscribed = Callable[[list[int]], None]  # codes


class _Subscribing:
    """A SUBSCRIBE of which some pieces are answered."""

    __slots__ = ("client", "codes", "existed", "read", "then", "wanted")

    def __init__(self, client: Client, wanted: list[Subscription], then: Subscribed) -> None:
        self.client = client
        self.wanted = wanted
        self.then = then
        self.codes: list[int] = []
        self.existed: list[bool] = []
        self.read = 0


class SessionFilters:
    """Asks the partitions of an edge's durable sessions to take and to drop filters."""

    def __init__(self, edge: "EdgeCore") -> None:
        self._edge = edge

    def subscribe(self, client: Client, wanted: list[Subscription], then: Subscribed) -> None:
        """Add or replace subscriptions; ``then`` is called when the routes of all stand, unless the client has left.

        What cannot be asked, because too many requests are unanswered, is refused with 0x97.
        """
        self._subscribe_piece(_Subscribing(client, wanted, then))

    def _subscribe_piece(self, item: _Subscribing) -> None:
        edge, client = self._edge, item.client
        start = len(item.codes)
        piece = item.wanted[start : start + FILTERS_PER_PIECE]
        number = edge.requests.next_number()
        item.read = item.read or number
        request = SubscribeSession(
            number, client.partition, 0, client.session, client.owner_epoch, piece, read=item.read
        )

        def subscribed(answer: Control) -> None:
            if client.conn.closed or not isinstance(answer, SessionSubscribed):
                return
            if not len(piece) == len(answer.reason_codes) == len(answer.existed):
                edge.error(client.conn, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
                return
            item.codes += answer.reason_codes
            item.existed += answer.existed
            if len(item.codes) < len(item.wanted):
                self._subscribe_piece(item)
            else:
                item.then(item.codes, item.existed, item.read)

        try:
            edge.requests.ask(request, subscribed, edge.now)
        except RequestsFull:
            left = len(item.wanted) - start
            item.then(item.codes + [int(ReasonCode.QUOTA_EXCEEDED)] * left, item.existed + [False] * left, item.read)

    def unsubscribe(self, client: Client, names: list[str], then: Unsubscribed) -> None:
        """Remove subscriptions; ``then`` is called when that of all is committed, unless the client has left."""
        self._unsubscribe_piece(client, names, [], then)

    def _unsubscribe_piece(self, client: Client, names: list[str], codes: list[int], then: Unsubscribed) -> None:
        edge = self._edge
        piece = names[len(codes) : len(codes) + FILTERS_PER_PIECE]
        request = UnsubscribeSession(
            edge.requests.next_number(), client.partition, 0, client.session, client.owner_epoch, piece
        )

        def unsubscribed(answer: Control) -> None:
            if client.conn.closed or not isinstance(answer, SessionUnsubscribed):
                return
            if len(answer.reason_codes) != len(piece):
                edge.error(client.conn, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
                return
            codes.extend(answer.reason_codes)
            if len(codes) < len(names):
                self._unsubscribe_piece(client, names, codes, then)
            else:
                then(codes)

        try:
            edge.requests.ask(request, unsubscribed, edge.now)
        except RequestsFull:
            edge.error(client.conn, ReasonCode.SERVER_BUSY)
