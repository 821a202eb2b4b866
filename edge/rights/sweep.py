"""Sweep over live clients after rules changed: filters that they grant no more go, with their routes.

New decisions follow new rules at once; this finds what was granted before. A pass is not begun anew while it runs: when
it ends, the rules of its beginning are in force everywhere here, and the next pass begins if they moved meanwhile.
Clients that were given other rights of their own are judged between, without a pass, and so are the filters that a
stored session brings along from earlier connections. Of each turn's filters a pass gets half at least, and a client
with many filters is judged over several turns: whoever renews or resumes without end holds up neither loop nor pass.
A judgement is over when no output of before is left at the client, if something was taken from it; who does not read
that within a second is closed, and gets nothing more (schedule A2).
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

__all__ = ["FILTERS_OF_TURN", "Output", "ReauthorizationPass", "Subscriber"]

CLIENTS_OF_TURN = 200
FILTERS_OF_TURN = 250  # 5 to 10 us each: half of the 5 ms that a turn may take
FILTERS_OF_SINGLE = FILTERS_OF_TURN // 2  # of clients that are judged without a pass
GROUPS_AT_ONCE = 32  # of one client that is resumed
LATE_READER = "late_reader"
DRAIN_S = 1.0  # for output of before the step, at a client from which it took something


class Subscriber(AuthorizedClient, Protocol):
    """A client with filters."""

    session: int
    partial: set[str]
    subscriptions: dict[str, SessionSubscription]

    @property
    def was_open(self) -> bool:
        """Whether it has CONNACK."""


class Output(Protocol):
    """The loop, as far as output and Routes go."""

    def output_mark(self, conn: LoopConnection) -> int:
        """Return the end of the output of now."""

    def written_to(self, conn: LoopConnection) -> int:
        """Return how much has left."""

    def refresh_routes(self) -> None:
        """Have each Route looked at before it is used again."""


class _Draining(NamedTuple):
    """Output of before a step that took something."""

    client: Subscriber
    mark: int
    until: float
    renewal: int  # 0: of a pass


C = TypeVar("C", bound=Subscriber)


class _Look(Generic[C]):
    """A client whose filters are being judged."""

    __slots__ = ("before", "client", "has_lost", "left", "renewal", "since")

    def __init__(self, client: C, since: int, renewal: int = 0, spared: Collection[str] = ()) -> None:
        self.client = client
        self.since = since  # the changes by which it was judged before
        self.renewal = renewal  # 0: of a pass
        self.begin(spared)

    def begin(self, spared: Collection[str] = ()) -> None:
        """Begin anew, with the filters of now."""
        self.left = deque(name for name in self.client.subscriptions if name not in spared)
        self.before = set(self.client.partial)
        self.has_lost = False

    def take(self, most: int) -> list[str]:
        """Return the next filters."""
        return [self.left.popleft() for _ in range(min(most, len(self.left)))]


class ReauthorizationPass(Generic[C]):
    """Passes over the clients of one edge.

    Args:
        rights: What each may do.
        clients: Returns all of them.
        revoke: Takes filters from one.
        rebound: Puts the limits of now of one into force.
        output: Of connections.
        drop: Closes a client for a reason that is counted, and writes nothing of what waits.
        left: Told a client that left before all of its filters were judged.

    Attributes:
        judged: ``ClientRights.changes`` that every client is judged by.
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
        self._look: _Look[C] | None = None  # of the pass, under way
        self._resuming: _Look[C] | None = None
        self._renewing: dict[int, _Look[C]] = {}  # by number of the connection
        self._draining: list[_Draining] = []
        self._begun = 0
        self._renewals = 0  # ``ClientRights.renewals`` that were judged
        self._seen = 0  # and those that were taken
        self._now = 0.0
        self.judged = 0

    def has_judged(self, changes: int, renewals: int) -> bool:
        """Return whether the rules of then, and the rights that were given until then, are in force everywhere here."""
        if self.judged < changes or self._renewals < renewals:
            return False
        return not any(0 < one.renewal <= renewals for one in self._draining)

    @property
    def untold(self) -> deque[C]:
        """Clients whose filters of before were too many to be told at CONNECT."""
        return cast("deque[C]", self._rights.untold)

    @property
    def _has_work(self) -> bool:
        single = self._renewing or self._resuming or self._rights.resumed or self._seen != self._rights.renewals
        return bool(self._left or self._look or single) or self._is_next_due

    @property
    def _is_next_due(self) -> bool:
        return self._left is None and self.judged != self._rights.changes

    def step(self, now: float) -> None:
        """Judge a slice."""
        if not (self._has_work or self._draining or self._left is not None):
            return
        self._now = now
        self._drain(now)
        self._take_renewed()
        clients, filters = self._judge_renewed()
        clients, filters = self._judge_resumed(clients, filters)
        if self._is_next_due:
            self._begun = self._rights.changes
            self._left = list(self._clients())
        while (self._left or self._look) and clients < CLIENTS_OF_TURN and filters < FILTERS_OF_TURN:
            look = self._look or _Look(cast("list[C]", self._left).pop(), self.judged)
            clients += 1
            filters += self._judge(look, FILTERS_OF_TURN - filters)
            self._look = look if look.left else None
        if self._left is not None and not (self._left or self._look) and all(one.renewal for one in self._draining):
            self._left = None
            self.judged = self._begun

    def _take_renewed(self) -> None:
        """Note whose rights are others; one that waits is judged anew at its place."""
        if self._seen == self._rights.renewals:
            return
        self._seen = self._rights.renewals
        for renewed in self._rights.take_renewed():
            client = cast(C, renewed)
            waiting = self._renewing.get(client.conn.number)
            if waiting is not None and waiting.client is client:
                waiting.begin()
            else:
                self._renewing[client.conn.number] = _Look(client, self._rights.changes - 1, self._seen)

    def _judge_renewed(self) -> tuple[int, int]:
        """Judge clients that were given other rights; return how many clients and filters that were."""
        clients = filters = 0
        while self._renewing and clients < CLIENTS_OF_TURN and filters < FILTERS_OF_SINGLE:
            number = next(iter(self._renewing))
            look = self._renewing[number]
            clients += 1
            filters += self._judge(look, FILTERS_OF_SINGLE - filters)
            if look.left:
                break
            del self._renewing[number]
            following = next(iter(self._renewing.values()), None)
            if following is None:
                self._renewals = self._seen
            elif following.renewal > look.renewal:
                self._renewals = look.renewal
        return clients, filters

    def _judge_resumed(self, clients: int, filters: int) -> tuple[int, int]:
        """Judge filters of stored sessions that were resumed; return how many clients and filters the turn has then."""
        resumed = self._rights.resumed
        while (self._resuming or resumed) and clients < CLIENTS_OF_TURN and filters < FILTERS_OF_SINGLE:
            look = self._resuming
            if look is None:
                client, taken = resumed.popleft()
                look = _Look(cast(C, client), 0, spared=frozenset(taken))
            clients += 1
            if look.client.conn.closed:
                self._resuming = None
                self.left(look.client)
                continue
            names = look.take(FILTERS_OF_SINGLE - filters)
            filters += len(names)
            self.judge_some(look.client, names)
            self._resuming = look if look.left else None
        return clients, filters

    def take_groups(self, client: C) -> list[str]:
        """Take from a resumed client, and return, its places in groups that it may not have.

        Pushes follow on the same link. A refused copy of a group goes to another member only when this one is none any
        more, so the order to remove it should leave before the refusal. Of more than some groups the partition takes
        each at its first refusal.
        """
        groups = [name for name in client.subscriptions if name.startswith("$share/")][:GROUPS_AT_ONCE]
        qos = {name: client.subscriptions[name].qos for name in groups}
        refused = [name for name in groups if self._rights.grant(client, name, qos[name]) is Grant.REFUSED]
        if refused:
            self._revoke(client, refused)
        return refused

    def _drain(self, now: float) -> None:
        """Forget clients whose output of before is written, and close those whose time is over."""
        left, self._draining = self._draining, []
        for one in left:
            if one.client.conn.closed or self._output.written_to(one.client.conn) >= one.mark:
                continue
            if now < one.until:
                self._draining.append(one)
            else:
                self._drop(cast(C, one.client), LATE_READER)

    def _judge(self, look: _Look[C], most: int) -> int:
        """Judge some filters of a client by the rules of now; return how many. Behind the last one it is judged."""
        client = look.client
        if client.conn.closed:
            look.left.clear()
            self.left(client)
            return 0
        self._rebound(client)
        names = look.take(most)
        has_lost = self.judge_some(client, names)
        look.has_lost = look.has_lost or has_lost
        if not look.left:
            self._judged_whole(look)
        return len(names)

    def _judged_whole(self, look: _Look[C]) -> None:
        """Put what was found into force; wait for the output of before if something was taken."""
        client = look.client
        if client.partial != look.before or (client.partial and look.renewal):
            self._output.refresh_routes()  # those that were made meanwhile have it where it may be no more
        if client.session or client.partial:
            self._rights.judge_deliveries(client)  # what waits for it was let through by other rules
        lost = look.has_lost or client.partial
        if lost or (client.session and self._rights.may_have_lost(client, look.since)):
            mark = self._output.output_mark(client.conn)
            if mark > self._output.written_to(client.conn):
                self._draining.append(_Draining(client, mark, self._now + DRAIN_S, look.renewal))

    def judge_some(self, client: C, names: Iterable[str]) -> bool:
        """Judge some of an open client's filters, and take those that are granted no more; return whether any was."""
        held = client.subscriptions
        refused = self._refused(client, [held[name] for name in names if name in held])
        if refused or client.partial:
            self._rights.judge_deliveries(client)
        if refused:
            self._revoke(client, refused)
        return bool(refused)

    def _refused(self, client: C, some: Iterable[SessionSubscription]) -> list[str]:
        """Return the filters that are granted no more, and note those that are in part."""
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
        """Return 0 while clients are left to judge, and by when the output of before has to be written."""
        if self._has_work:
            return 0.0
        return min((one.until for one in self._draining), default=math.inf)
