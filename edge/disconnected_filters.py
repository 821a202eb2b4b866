"""Re-authorizes subscriptions of durable sessions of disconnected clients.

After a policy step that removes permissions, each partition is checked by exactly one edge. That edge reads the
partition's sessions in pages, authorizes each filter for the current user, and removes the refused ones with their
routes. It checks the whole partition when an edge dies or when the assignment changes, because the other edge may have
died before it finished. An edge also checks the users of clients that disconnect from it before their filters were
authorized, in any partition. An unresponsive partition does not delay the others. Operator commands do not wait for
this: queued messages are authorized again on delivery.
Decision: docs/adr/0131-filters-of-the-absent.md.
"""

import math
from collections import deque
from collections.abc import Collection
from functools import partial

from edge.clients.client import Client
from edge.cluster.partition_requests import PartitionRequests
from edge.node.node import EdgeNode
from edge.rights.absent import AbsentUserChecks
from wire.messages.cluster_map import NodeIncarnation
from wire.messages.control import Control
from wire.messages.disconnected_sessions import (
    AWAY_USERS_MAX,
    DisconnectedListed,
    DisconnectedRevoked,
    DisconnectedSession,
    ListDisconnected,
    RevokeDisconnected,
)
from wire.messages.hello import TIER_EDGE

__all__ = ["DisconnectedFilterChecks"]

FILTERS_PER_ITERATION = 200  # filters, some 5 us each
FILTERS_PER_REVOKE = 32  # filters of one request: a broad filter is removed at the owner of every shard
RETRY_S = 1.0  # retry delay while too many requests are pending
PAGE_S = 30.0  # for the user records of a page; then it is read again
ANSWER_S = 2.0  # for a partition; then the others continue, and it is retried after them
DISCONNECTED_BATCH_S = 5.0  # batching time of disconnected users: a scan reads all sessions of their partition


class DisconnectedFilterChecks:
    """The checks of one edge.

    Args:
        node: This edge.
        requests: To partitions.
        absent: Authorizes users without a connected client.
    """

    def __init__(self, node: EdgeNode, requests: PartitionRequests, absent: AbsentUserChecks) -> None:
        self._node = node
        self._requests = requests
        self._absent = absent
        self._assigned: frozenset[int] = frozenset()  # partitions, by the map of ``_map_epoch``
        self._map_epoch = -1
        self._edges: frozenset[NodeIncarnation] = frozenset()  # live edges, by the same map
        self._disconnected: dict[int, frozenset[str]] = {}  # partition -> users of unchecked clients
        self._disconnected_at = math.inf  # when those are checked
        self._due: dict[int, frozenset[str]] = {}  # partition -> users to check, none: all
        self._partition = -1  # being checked, -1: none
        self._users: frozenset[str] = frozenset()
        self._was_assigned = False  # when its check started
        self._first, self._skip = 0, 0  # start of the current page
        self._page: DisconnectedListed | None = None
        self._unchecked: deque[DisconnectedSession] = deque()  # of the page, unchecked
        self._checking = 0  # sessions with pending user records
        self._revoking = 0  # unanswered requests
        self._undecided = False  # a session of the page has no result: it is read again
        self._number = 0  # of the page: results of former pages are ignored
        self._request_number = 0  # the request for the current page
        self._until = math.inf  # for the user records of the current page
        self._answer_until = math.inf  # for its partition
        self._next_at = 0.0

    def taken(self, users: Collection[str] = ()) -> None:
        """Schedule checks of the users that a policy step removed permissions from; none: of all users."""
        for number in self._assigned if self._absent.judges_users else ():
            _add(self._due, number, frozenset(users))
        self._node.wake()

    def left(self, client: Client) -> None:
        """Schedule a check of a client that disconnected before its filters were authorized or its refused ones
        removed.

        While it was connected, the edge of its partition skipped it.
        """
        if client.session and client.owner_made and self._absent.judges_users:
            if not self._disconnected:
                self._disconnected_at = self._node.now + DISCONNECTED_BATCH_S
            _add(self._disconnected, client.partition, frozenset((client.owner,)))
            self._node.wake()

    def _follow_map(self) -> None:
        cluster_map = self._node.map
        self._map_epoch = cluster_map.epoch
        edges = cluster_map.live(TIER_EDGE)
        names = [entry.node for entry in edges]
        place = names.index(self._node.name) if self._node.name in names else -1
        count = len(cluster_map.partitions)
        assigned = frozenset(range(place, count, len(names))) if place >= 0 else frozenset()
        lives = frozenset((entry.node, entry.incarnation) for entry in edges)
        for number in sorted(assigned if self._edges - lives else assigned - self._assigned):
            self._due[number] = frozenset()
        for number in self._assigned - assigned:
            self._due.pop(number, None)
        self._assigned, self._edges = assigned, lives

    # --- a part of edge/access.py

    def step(self, now: float) -> None:
        """Continue with the current page, or the next one."""
        if not self._absent.judges_users:
            return
        if self._map_epoch != self._node.map.epoch:
            self._follow_map()
        # A node that may admit has a valid lease and a policy at least as new as the step.
        if not self._node.may_admit() or now < self._next_at:
            return
        if self._disconnected_at <= now:
            for number, users in self._disconnected.items():
                _add(self._due, number, users)
            self._disconnected, self._disconnected_at = {}, math.inf
        if self._partition >= 0 and self._answer_until <= now and self._due:
            self._postpone()
        if self._partition < 0 and self._due:
            self._partition = next(iter(self._due))
            self._users = self._due.pop(self._partition)
            self._was_assigned = self._partition in self._assigned
            self._first = self._skip = 0
            self._ask(now)
        elif self._page is not None:
            self._check_some()
            self._finish_page(self._page, now)

    def _ask(self, now: float) -> None:
        self._page, self._checking, self._undecided = None, 0, False
        self._number += 1
        self._unchecked.clear()
        self._revoking, self._request_number, self._answer_until = 0, self._requests.next_number(), now + ANSWER_S
        request = ListDisconnected(
            self._request_number, self._partition, 0, self._first, self._skip, sorted(self._users)
        )
        if not self._requests.ask(request, self._listed, now):
            self._postpone()
            self._next_at = now + RETRY_S

    def _postpone(self) -> None:
        """Retry this partition after the others: it has no primary, or an unresponsive one."""
        self._requests.cancel(self._request_number)
        _add(self._due, self._partition, self._users)
        self._unchecked.clear()
        self._partition, self._page, self._number = -1, None, self._number + 1

    def _listed(self, answer: Control) -> None:
        if isinstance(answer, DisconnectedListed):
            self._page, self._until, self._answer_until = answer, self._node.now + PAGE_S, math.inf
            self._unchecked.extend(answer.sessions)

    def _check_some(self) -> None:
        checked = 0
        while self._unchecked and checked < FILTERS_PER_ITERATION:
            one = self._unchecked.popleft()
            checked += 1 + len(one.filters)
            self._checking += 1
            if not self._absent.check_filters(one, partial(self._checked, self._number, one)):
                self._checking -= 1
                self._undecided = True  # too many requests for user records

    def _checked(self, number: int, one: DisconnectedSession, refused: list[str] | None) -> None:
        page = self._page
        if number != self._number or page is None:
            return
        self._checking -= 1
        if refused is None:
            self._undecided = True
            return
        for at in range(0, len(refused), FILTERS_PER_REVOKE):
            head = self._requests.next_number(), self._partition, 0, one.session, one.owner_epoch
            request = RevokeDisconnected(*head, refused[at : at + FILTERS_PER_REVOKE])
            if self._requests.ask(request, partial(self._revoked, number), self._node.now):
                self._revoking += 1
                self._answer_until = self._node.now + ANSWER_S
            else:
                self._undecided = True

    def _revoked(self, number: int, answer: Control) -> None:
        if number == self._number:
            self._revoking -= 1
            self._answer_until = self._node.now + ANSWER_S if self._revoking else math.inf
        if isinstance(answer, DisconnectedRevoked):
            self._node.count("revoked_filters_away", answer.removed)

    def _finish_page(self, page: DisconnectedListed, now: float) -> None:
        is_late = now >= self._until
        if self._unchecked or self._revoking or (self._checking and not is_late):
            return
        if self._undecided or self._checking:
            self._node.count("away_filters_asked_again")
            self._next_at = now + RETRY_S
            self._ask(now)
            return
        self._first, self._skip, self._page = page.next_first, page.next_skip, None
        if page.next_first and (not self._was_assigned or self._partition in self._assigned):
            self._ask(now)
        else:
            self._partition = -1

    def next_deadline(self) -> float:
        """Return when the next step is due: at once while sessions can be checked."""
        if not self._node.may_admit() or not self._absent.judges_users:
            return math.inf
        if self._unchecked or (self._due and self._partition < 0) or self._map_epoch != self._node.map.epoch:
            return self._next_at
        until = min(self._answer_until if self._due else math.inf, self._disconnected_at)
        if self._page is not None:
            return min(until, self._until) if self._checking or self._revoking else self._next_at
        return until if self._partition >= 0 else self._disconnected_at


def _add(checks: dict[int, frozenset[str]], number: int, users: frozenset[str]) -> None:
    """Schedule a check of users of a partition, none: all users."""
    if number in checks and users:
        users = users | checks[number] if checks[number] else frozenset()
    checks[number] = users if len(users) <= AWAY_USERS_MAX else frozenset()
