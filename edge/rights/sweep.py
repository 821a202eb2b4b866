"""Sweep over live clients after rules changed: filters that they grant no more go, with their routes.

New decisions follow new rules at once; this finds what was granted before. A pass is not begun anew while it runs: when
it ends, the rules of its beginning are in force everywhere here, and the next pass begins if they moved meanwhile.
It ends when no output of before is left at a client from which something was taken; who does not read for a second is
closed, and gets nothing more (schedule A2).
Decision: docs/adr/0034-access.md, schedules A1 and A6 of docs/revocation.md.
"""

import math
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar, cast

from access.rules.rules import Grant
from edge.hot.state import Conn
from edge.rights.client_rights import ClientRights, Judged
from wire.messages.sessions import Subscription

__all__ = ["FILTERS_OF_TURN", "STRICTER_LIMITS", "Subscriber", "Sweep"]

CLIENTS_OF_TURN = 200
FILTERS_OF_TURN = 500  # some 5 us each
LATE_READER, STRICTER_LIMITS = "late_reader", "stricter_limits"
DRAIN_S = 1.0  # for output of before the step, at a client from which it took something


class Subscriber(Judged, Protocol):
    """A client with filters."""

    session: int
    partial: set[str]
    subscriptions: dict[str, Subscription]

    @property
    def was_open(self) -> bool:
        """Whether it has CONNACK."""


C = TypeVar("C", bound=Subscriber)


class Sweep(Generic[C]):
    """Passes over the clients of one edge.

    Args:
        rights: What each may do.
        clients: Returns all of them.
        revoke: Takes filters from one.
        output_bytes: Returns how much waits for the socket of a connection.
        drop: Closes a client for a reason that is counted, and writes nothing of what waits.

    Attributes:
        judged: ``ClientRights.changes`` that every client is judged by.
    """

    def __init__(
        self,
        rights: ClientRights,
        clients: Callable[[], Sequence[C]],
        revoke: Callable[[C, list[str]], None],
        output_bytes: Callable[[Conn], int],
        drop: Callable[[C, str], None],
    ) -> None:
        self._rights = rights
        self._clients = clients
        self._revoke = revoke
        self._output_bytes = output_bytes
        self._drop = drop
        self._left: list[C] | None = None
        self._draining: list[C] = []
        self._drained_by = math.inf
        self._begun = 0
        self.judged = 0

    @property
    def busy(self) -> bool:
        """Whether clients are left to judge."""
        return self._left is not None or self.judged != self._rights.changes or self._rights.has_renewed

    def step(self, now: float) -> None:
        """Judge a slice."""
        if not self.busy:
            return
        if self._draining:
            self._drain(now)
        for renewed in self._rights.take_renewed():
            if not renewed.conn.closed:
                self._judge(cast(C, renewed))
        if self._left is None and self.judged == self._rights.changes:
            return
        if self._left is None:
            self._begun = self._rights.changes
            self._left = list(self._clients())
            self._drained_by = math.inf
        clients = filters = 0
        while self._left and clients < CLIENTS_OF_TURN and filters < FILTERS_OF_TURN:
            client = self._left.pop()
            clients += 1
            if not client.conn.closed:
                filters += len(client.subscriptions)
                self._judge(client)
        if not self._left and self._drained_by == math.inf:
            self._drained_by = now + DRAIN_S
            self._drain(now)
        if not self._left and not self._draining:
            self._left = None
            self.judged = self._begun

    def _drain(self, now: float) -> None:
        """Forget clients whose output is written, and close the others when their time is over."""
        self._draining = [one for one in self._draining if not one.conn.closed and self._output_bytes(one.conn)]
        if now >= self._drained_by:
            late, self._draining = self._draining, []
            for client in late:
                self._drop(client, LATE_READER)

    def _judge(self, client: C) -> None:
        if client.was_open and self._rights.has_stricter_bounds(client):
            self._drop(client, STRICTER_LIMITS)
            return
        refused = []
        for name, subscription in client.subscriptions.items():
            grant = self._rights.grant(client, name, subscription.qos)
            if grant is Grant.REFUSED:
                refused.append(name)
            elif grant is Grant.PARTIAL:
                client.partial.add(name)
            else:
                client.partial.discard(name)
        client.partial.difference_update(refused)
        if client.session or refused or client.partial:
            self._rights.judge_deliveries(client)  # what waits for it was let through by other rules
        if (refused or client.partial) and self._output_bytes(client.conn):
            self._draining.append(client)
        if refused:
            self._revoke(client, refused)

    def next_deadline(self) -> float:
        """Return 0 while clients are left to judge, and by when the output of before has to be written."""
        if self._left is not None and not self._left and self._draining:
            return self._drained_by
        return 0.0 if self.busy else math.inf
