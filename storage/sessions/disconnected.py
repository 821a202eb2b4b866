"""Filters of disconnected stored sessions: sent to an edge in pages, removed at the edge's request.

The edge authorizes them. The partition verifies that the client is still disconnected since the same connection. A
page is bounded in filters, bytes and scanned sessions, so none blocks the loop. Queued messages stay: they are
authorized at delivery.

A session over several pages uses its filter list of the first page, so later changes do not shift it; removed filters
are omitted. A new primary lacks that list and orders filters differently: it restarts that session.

Decision: docs/adr/0131-filters-of-the-absent.md.
"""

from bisect import bisect_left
from itertools import islice

from storage.sessions.subscriptions import Subscriptions
from storage.state.durable_sessions import ENDING, DurableSession
from storage.state.partition import Partition
from wire.messages.disconnected_sessions import (
    DisconnectedListed,
    DisconnectedRevoked,
    DisconnectedSession,
    HeldFilter,
    ListDisconnected,
    RevokeDisconnected,
)

__all__ = ["DisconnectedSessions"]

PAGE_FILTERS = 500
PAGE_BYTES = 256 * 1024  # of text; a character may take four
PAGE_SESSIONS = 2_000  # sessions scanned per page: about a millisecond


class DisconnectedSessions:
    """The sessions of one partition that have no connection."""

    def __init__(self, partition: Partition, subscriptions: Subscriptions) -> None:
        self._partition = partition
        self._subscriptions = subscriptions
        self._numbers: list[int] = []  # of the pass in progress; a session created meanwhile needs no check
        self._session = 0  # number of the session whose filters take several pages, 0: none
        self._filters: list[str] = []  # filters of that session at its first page

    def list_some(self, request: ListDisconnected, edge: str) -> None:
        """Send the next page to an edge."""
        if not request.first or not self._numbers:
            self._numbers = sorted(self._partition.sessions)
        at = bisect_left(self._numbers, request.first)
        users = frozenset(request.users)
        answer = DisconnectedListed(request.request)
        room, octets = PAGE_FILTERS, PAGE_BYTES
        for number in islice(self._numbers, at, at + PAGE_SESSIONS):
            session = self._partition.sessions.get(number)
            if session is None or not _is_away(session) or (users and session.owner not in users):
                continue
            if room <= 0 or octets <= 0:
                answer.next_first = number
                break
            names, skip = self._names(session, request.skip if number == request.first else 0)
            one = DisconnectedSession(number, session.owner_epoch, session.client_id, session.owner, session.owner_made)
            octets -= 4 * (len(session.client_id) + len(session.owner))
            for passed, name in enumerate(islice(names, skip, None), skip):
                if one.filters and (room <= 0 or octets <= 0):
                    answer.next_first, answer.next_skip = number, passed
                    break
                if (subscription := session.subscriptions.get(name)) is not None:
                    one.filters.append(HeldFilter(name, subscription.qos))
                    octets -= 4 * len(name)
                room -= 1
            answer.sessions.append(one)
            if answer.next_first:
                break
        else:
            if at + PAGE_SESSIONS < len(self._numbers):
                answer.next_first = self._numbers[at + PAGE_SESSIONS]
        if not answer.next_first:
            self._numbers = []
        if not answer.next_skip:
            self._session, self._filters = 0, []
        self._partition.send_control(edge, answer)

    def _names(self, session: DurableSession, skip: int) -> tuple[list[str], int]:
        """Return the filters of a session at its first page, and how many of them were sent."""
        if not skip or self._session != session.number:
            self._session, self._filters, skip = session.number, list(session.subscriptions), 0
        return self._filters, skip

    def revoke(self, request: RevokeDisconnected, edge: str) -> None:
        """Remove filters of a session whose client has not connected since they were sent."""
        partition = self._partition
        session = partition.sessions.get(request.away)
        removed = 0
        if session is not None and _is_away(session) and session.owner_epoch == request.owner_epoch:
            removed = self._subscriptions.remove(session, request.topic_filters, revoked=True).count(0)
        partition.send_control(edge, DisconnectedRevoked(request.request, removed))


def _is_away(session: DurableSession) -> bool:
    """Return whether a session of a cluster user has filters and no connection."""
    stands = not session.edge and session.deadline != ENDING and session.owner_made > 0
    return stands and bool(session.made("subscriptions"))
