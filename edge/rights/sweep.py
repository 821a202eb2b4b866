"""Sweep over live clients after a change of rules: removes filters that are no longer granted, with their routes.

New decisions follow new rules at once; the sweep finds earlier grants. A running pass is not restarted: at its end the
rules of its start are applied to all clients, and the next pass starts if they changed meanwhile. Clients with replaced
rights, and filters of resumed sessions, are authorized between, without a pass. A pass gets at least half of an
iteration's filters, and a client with many filters takes several iterations. So renewals and resumes delay neither the
loop nor the pass.

If a client lost a filter, its check ends only when all earlier output is written; a client that does not read it within
a second is closed without it (schedule A2).
Decision: docs/adr/0034-access.md, schedules A1 and A6 of docs/revocation.md.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from access.rules.rules import Grant
from edge.loop.state import LoopConnection
from edge.rights.client_rights import AuthorizedClient, ClientRights
from wire.messages.sessions import SessionSubscription

__all__ = ["FILTERS_PER_ITERATION", "Output", "ReauthorizationPass", "Subscriber"]

CLIENTS_PER_ITERATION = 200
FILTERS_PER_ITERATION = 250  # 5 to 10 us each: half of the 5 ms budget of an iteration
FILTERS_WITHOUT_PASS = FILTERS_PER_ITERATION // 2  # of clients without a pass
SHARES_PER_RESUME = 32  # of one resumed client
LATE_READER = "late_reader"
DRAIN_S = 1.0  # for earlier output of a client that lost a filter


class Subscriber(AuthorizedClient, Protocol):
    """A client with filters."""

    session: int
    partial: set[str]
    subscriptions: dict[str, SessionSubscription]

    @property
    def was_open(self) -> bool:
        """Whether it has CONNACK."""


class Output(Protocol):
    """The loop's output and Routes."""

    def output_mark(self, conn: LoopConnection) -> int:
        """Return the current end of the output."""

    def written_to(self, conn: LoopConnection) -> int:
        """Return the written part of the output."""

    def refresh_routes(self) -> None:
        """Check each Route before its next use."""


class _PendingOutput(NamedTuple):
    """Output from before a removal."""

    client: Subscriber
    mark: int
    until: float
    renewal: int  # 0: of a pass


C = TypeVar("C", bound=Subscriber)


class _FilterCheck(Generic[C]):
    """A client during the check of its filters."""

    __slots__ = ("before", "client", "has_lost", "left", "renewal", "since")

    def __init__(self, client: C, since: int, renewal: int = 0, checked_before: Collection[str] = ()) -> None:
        self.client = client
        self.since = since  # ``changes`` of its last check
        self.renewal = renewal  # 0: of a pass
        self.begin(checked_before)

    def begin(self, checked_before: Collection[str] = ()) -> None:
        """Start with its current filters."""
        self.left = deque(name for name in self.client.subscriptions if name not in checked_before)
        self.before = set(self.client.partial)
        self.has_lost = False

    def take(self, most: int) -> list[str]:
        """Return the next filters."""
        return [self.left.popleft() for _ in range(min(most, len(self.left)))]


class ReauthorizationPass(Generic[C]):
    """Passes over the clients of one edge.

    Args:
        rights: Permissions of each client.
        clients: Returns all of them.
        revoke: Removes filters from one.
        rebound: Applies the current limits to one.
        output: Of connections.
        drop: Closes a client without its pending output, for a counted reason.
        left: Called with a client that disconnected before the check of all its filters.

    Attributes:
        judged: ``ClientRights.changes`` applied to every client.
    """

    def __init__(
        self,
        rights: ClientRights,
        clients: Callable[[], Sequence[C]],
        revoke: Callable[[C, list[str]], None],
        rebound: Callable[[C], None],
        output: Output,
        drop: Callable[[C, str], None],
        left: Callable[[C], None],
    ) -> None:
        self._rights = rights
        self._clients = clients
        self._revoke = revoke
        self._rebound = rebound
        self._output = output
        self._drop = drop
        self.left = left
        self._left: list[C] | None = None
        self._check: _FilterCheck[C] | None = None  # of the pass, in progress
        self._resuming: _FilterCheck[C] | None = None
        self._renewing: dict[int, _FilterCheck[C]] = {}  # by number of the connection
        self._draining: list[_PendingOutput] = []
        self._begun = 0
        self._renewals = 0  # applied ``ClientRights.renewals``
        self._received_renewals = 0  # and the received ones
        self._now = 0.0
        self.judged = 0

    def is_applied(self, changes: int, renewals: int) -> bool:
        """Return whether the rules and rights up to these numbers are applied to all clients."""
        if self.judged < changes or self._renewals < renewals:
            return False
        return not any(0 < one.renewal <= renewals for one in self._draining)

    @property
    def untold(self) -> deque[C]:
        """Clients with too many filters for the response to CONNECT."""
        return cast("deque[C]", self._rights.untold)

    @property
    def _has_work(self) -> bool:
        single = (
            self._renewing or self._resuming or self._rights.resumed or self._received_renewals != self._rights.renewals
        )
        return bool(self._left or self._check or single) or self._is_next_due

    @property
    def _is_next_due(self) -> bool:
        return self._left is None and self.judged != self._rights.changes

    def step(self, now: float) -> None:
        """Check a slice."""
        if not (self._has_work or self._draining or self._left is not None):
            return
        self._now = now
        self._drain(now)
        self._take_renewed()
        clients, filters = self._check_renewed()
        clients, filters = self._check_resumed(clients, filters)
        if self._is_next_due:
            self._begun = self._rights.changes
            self._left = list(self._clients())
        while (self._left or self._check) and clients < CLIENTS_PER_ITERATION and filters < FILTERS_PER_ITERATION:
            check = self._check or _FilterCheck(cast("list[C]", self._left).pop(), self.judged)
            clients += 1
            filters += self._check_some(check, FILTERS_PER_ITERATION - filters)
            self._check = check if check.left else None
        if self._left is not None and not (self._left or self._check) and all(one.renewal for one in self._draining):
            self._left = None
            self.judged = self._begun

    def _take_renewed(self) -> None:
        """Queue clients with replaced rights; a queued client keeps its position and starts again."""
        if self._received_renewals == self._rights.renewals:
            return
        self._received_renewals = self._rights.renewals
        for renewed in self._rights.pop_renewed():
            client = cast(C, renewed)
            waiting = self._renewing.get(client.conn.number)
            if waiting is not None and waiting.client is client:
                waiting.begin()
            else:
                self._renewing[client.conn.number] = _FilterCheck(
                    client, self._rights.changes - 1, self._received_renewals
                )

    def _check_renewed(self) -> tuple[int, int]:
        """Check clients with replaced rights; return the number of clients and filters."""
        clients = filters = 0
        while self._renewing and clients < CLIENTS_PER_ITERATION and filters < FILTERS_WITHOUT_PASS:
            number = next(iter(self._renewing))
            check = self._renewing[number]
            clients += 1
            filters += self._check_some(check, FILTERS_WITHOUT_PASS - filters)
            if check.left:
                break
            del self._renewing[number]
            following = next(iter(self._renewing.values()), None)
            if following is None:
                self._renewals = self._received_renewals
            elif following.renewal > check.renewal:
                self._renewals = check.renewal
        return clients, filters

    def _check_resumed(self, clients: int, filters: int) -> tuple[int, int]:
        """Check filters of resumed durable sessions; return the iteration's number of clients and filters."""
        resumed = self._rights.resumed
        while (self._resuming or resumed) and clients < CLIENTS_PER_ITERATION and filters < FILTERS_WITHOUT_PASS:
            check = self._resuming
            if check is None:
                client, taken = resumed.popleft()
                check = _FilterCheck(cast(C, client), 0, checked_before=frozenset(taken))
            clients += 1
            if check.client.conn.closed:
                self._resuming = None
                self.left(check.client)
                continue
            names = check.take(FILTERS_WITHOUT_PASS - filters)
            filters += len(names)
            self.authorize_filters(check.client, names)
            self._resuming = check if check.left else None
        return clients, filters

    def revoke_shares(self, client: C) -> list[str]:
        """Remove, and return, a resumed client's shared subscriptions that it has no permission for.

        Pushes follow on the same link. A refused copy is redispatched only after this member is removed, so the removal
        should be sent before the refusal. Beyond ``SHARES_PER_RESUME`` the partition removes each at its first refusal.
        """
        groups = [name for name in client.subscriptions if name.startswith("$share/")][:SHARES_PER_RESUME]
        qos = {name: client.subscriptions[name].qos for name in groups}
        refused = [name for name in groups if self._rights.grant(client, name, qos[name]) is Grant.REFUSED]
        if refused:
            self._revoke(client, refused)
        return refused

    def _drain(self, now: float) -> None:
        """Remove clients with all earlier output written, and close those beyond their deadline."""
        left, self._draining = self._draining, []
        for one in left:
            if one.client.conn.closed or self._output.written_to(one.client.conn) >= one.mark:
                continue
            if now < one.until:
                self._draining.append(one)
            else:
                self._drop(cast(C, one.client), LATE_READER)

    def _check_some(self, check: _FilterCheck[C], most: int) -> int:
        """Check some filters of a client by the current rules; return their number. The last one completes its
        check.
        """
        client = check.client
        if client.conn.closed:
            check.left.clear()
            self.left(client)
            return 0
        self._rebound(client)
        names = check.take(most)
        has_lost = self.authorize_filters(client, names)
        check.has_lost = check.has_lost or has_lost
        if not check.left:
            self._finish_check(check)
        return len(names)

    def _finish_check(self, check: _FilterCheck[C]) -> None:
        """Apply the result of a client's check; wait for its earlier output if it lost a filter."""
        client = check.client
        if client.partial != check.before or (client.partial and check.renewal):
            self._output.refresh_routes()  # Routes built meanwhile may have it as an unconditional subscriber
        if client.session or client.partial:
            self._rights.judge_deliveries(client)  # earlier rules admitted its queued messages
        lost = check.has_lost or client.partial
        if lost or (client.session and self._rights.may_have_lost(client, check.since)):
            mark = self._output.output_mark(client.conn)
            if mark > self._output.written_to(client.conn):
                self._draining.append(_PendingOutput(client, mark, self._now + DRAIN_S, check.renewal))

    def authorize_filters(self, client: C, names: Iterable[str]) -> bool:
        """Check some of an open client's filters, and remove the refused ones; return whether there were any."""
        held = client.subscriptions
        refused = self._refused(client, [held[name] for name in names if name in held])
        if refused or client.partial:
            self._rights.judge_deliveries(client)
        if refused:
            self._revoke(client, refused)
        return bool(refused)

    def _refused(self, client: C, some: Iterable[SessionSubscription]) -> list[str]:
        """Return the refused filters, and mark the partly granted ones."""
        refused = []
        for subscription in some:
            name = subscription.topic_filter
            grant = self._rights.grant(client, name, subscription.qos)
            if grant is Grant.REFUSED:
                refused.append(name)
            elif grant is Grant.PARTIAL:
                client.partial.add(name)
            else:
                client.partial.discard(name)
        client.partial.difference_update(refused)
        return refused

    def next_deadline(self) -> float:
        """Return 0 while clients are unchecked, else the deadline of earlier output."""
        if self._has_work:
            return 0.0
        return min((one.until for one in self._draining), default=math.inf)
