"""Sweep over live clients after rules changed: filters that they grant no more go, with their routes.

New decisions follow new rules at once; this finds what was granted before. A pass is not begun anew while it runs: when
it ends, the rules of its beginning are in force everywhere here, and the next pass begins if they moved meanwhile.
Clients that were given other rights of their own are judged between, without a pass, and so are the filters that a
stored session brings along from earlier connections. A judgement is over when no output of before is left at the
client, if something was taken from it; who does not read that within a second is closed, and gets nothing more
(schedule A2).
Decision: docs/adr/0034-access.md, schedules A1 and A6 of docs/revocation.md.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from access.rules.rules import Grant
from edge.hot.state import Conn
from edge.rights.client_rights import ClientRights, Judged
from wire.messages.sessions import Subscription

__all__ = ["FILTERS_OF_TURN", "Output", "Subscriber", "Sweep"]

CLIENTS_OF_TURN = 200
FILTERS_OF_TURN = 250  # 5 to 10 us each: half of the 5 ms that a turn may take
GROUPS_AT_ONCE = 32  # of one client that is resumed
LATE_READER = "late_reader"
DRAIN_S = 1.0  # for output of before the step, at a client from which it took something


class Subscriber(Judged, Protocol):
    """A client with filters."""

    session: int
    partial: set[str]
    subscriptions: dict[str, Subscription]

    @property
    def was_open(self) -> bool:
        """Whether it has CONNACK."""


class Output(Protocol):
    """The loop, as far as output and Routes go."""

    def output_mark(self, conn: Conn) -> int:
        """Return the end of the output of now."""

    def written_to(self, conn: Conn) -> int:
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


class Sweep(Generic[C]):
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
        self._draining: list[_Draining] = []
        self._begun = 0
        self._renewals = 0  # ``ClientRights.renewals`` that were judged
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
        renewed = self._renewals != self._rights.renewals
        return bool(self._left or self._rights.resumed) or renewed or self._is_next_due

    @property
    def _is_next_due(self) -> bool:
        return self._left is None and self.judged != self._rights.changes

    def step(self, now: float) -> None:
        """Judge a slice."""
        if not (self._has_work or self._draining or self._left is not None):
            return
        self._now = now
        self._drain(now)
        if self._renewals != self._rights.renewals:
            renewals = self._rights.renewals
            for renewed in self._rights.take_renewed():
                if renewed.conn.closed:
                    self.left(cast(C, renewed))
                else:
                    self._judge(cast(C, renewed), self._rights.changes - 1, renewals)
            self._renewals = renewals
        clients, filters = self._judge_resumed()
        if self._is_next_due:
            self._begun = self._rights.changes
            self._left = list(self._clients())
        while self._left and clients < CLIENTS_OF_TURN and filters < FILTERS_OF_TURN:
            client = self._left.pop()
            clients += 1
            if client.conn.closed:
                self.left(client)
            else:
                filters += len(client.subscriptions)
                self._judge(client, self.judged)
        if self._left is not None and not self._left and all(one.renewal for one in self._draining):
            self._left = None
            self.judged = self._begun

    def _judge_resumed(self) -> tuple[int, int]:
        """Judge filters of stored sessions that were resumed; return how many clients and filters that were."""
        clients = filters = 0
        resumed = self._rights.resumed
        while resumed and clients < CLIENTS_OF_TURN and filters < FILTERS_OF_TURN:
            resumed_client, taken = resumed.popleft()
            client = cast(C, resumed_client)
            clients += 1
            if client.conn.closed:
                self.left(client)
                continue
            filters += len(client.subscriptions)
            refused = [name for name in self._refused(client) if name not in taken]
            if refused or client.partial:
                self._rights.judge_deliveries(client)
            if refused:
                self._revoke(client, refused)
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

    def _judge(self, client: C, since: int, renewal: int = 0) -> None:
        """Judge a client by the rules of now; ``since``: the changes by which it was judged before."""
        self._rebound(client)
        before = set(client.partial)
        refused = self._refused(client)
        if client.partial != before or (client.partial and renewal):
            self._output.refresh_routes()  # those that were made meanwhile have it where it may be no more
        if client.session or refused or client.partial:
            self._rights.judge_deliveries(client)  # what waits for it was let through by other rules
        if refused or client.partial or (client.session and self._rights.may_have_lost(client, since)):
            mark = self._output.output_mark(client.conn)
            if mark > self._output.written_to(client.conn):
                self._draining.append(_Draining(client, mark, self._now + DRAIN_S, renewal))
        if refused:
            self._revoke(client, refused)

    def judge_some(self, client: C, names: Collection[str]) -> None:
        """Judge some of an open client's filters that it had before, and take those that are not granted."""
        held = client.subscriptions
        refused = self._refused(client, [held[name] for name in names if name in held])
        if refused or client.partial:
            self._rights.judge_deliveries(client)
        if refused:
            self._revoke(client, refused)

    def _refused(self, client: C, some: Collection[Subscription] | None = None) -> list[str]:
        """Return the filters of a client that are granted no more, and note those that are in part; None: of all."""
        refused = []
        for subscription in client.subscriptions.values() if some is None else some:
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
