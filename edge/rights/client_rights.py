"""Rights of each client of an edge: joined when it is let in, asked by the loop and the rooms that act for it.

With rules, be it none at all, a client without rights may do nothing. (A core without rules judges nobody; no edge is
started so.) When the rules change, decisions that the loop keeps are void, and each client gets the
class of its new rules before the next thing that it does.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from access.identity.principal import Principal
from access.operators.audit_chain import AuditRecord, Scalar
from access.policy.view import PolicyView
from access.rules.rights import ConnectionRights, RightsClasses
from access.rules.rules import Action, CompiledRules, Grant
from access.rules.subject import Subject
from edge.loop.state import LoopConnection
from edge.node.limits import EdgeLimits, ListenerPolicy
from edge.node.ports import RightsIO
from edge.rights.bounds import Bounds, bounds_of_listener, stricter
from edge.rights.sources import RuleBook, Sources

__all__ = ["AbsentRights", "AuthorizedClient", "ClientRights"]

EVERYTHING, OF_CLASS, TOO_DEEP = 0x3F, 0x40, 0x80  # Handler.authorize


class AuthorizedClient(Protocol):
    """A client, as far as rights go."""

    conn: LoopConnection
    policy: ListenerPolicy
    client_id: str
    principal: Principal | None
    rights: ConnectionRights | None
    bounds: Bounds | None
    renewals: int


class ClientRights:
    """The rights of one edge's clients.

    Args:
        loop: Where decisions about publishing are kept.
        book: Which rules each client has; None: nobody is judged.
        limits: Of the edge: no client's bounds are wider.
        audit: Takes a line about what no rule allowed.
    """

    def __init__(
        self,
        loop: RightsIO,
        book: RuleBook | None,
        limits: EdgeLimits,
        audit: Callable[[AuditRecord], None] = lambda _: None,
    ) -> None:
        self._loop = loop
        self._audit = audit
        self._book = book
        self._of_listeners: dict[str, tuple[ListenerPolicy, Bounds]] = {}
        self._limits = limits
        self._now = 0.0
        self._renewed: list[AuthorizedClient] = []
        # Clients with filters of before, to be judged by the sweep; and those of them that it took at once.
        self.resumed: deque[tuple[AuthorizedClient, list[str]]] = deque()
        self.untold: deque[AuthorizedClient] = deque()  # whose filters of before were too many to be told at CONNECT
        self.take_groups: Callable[[Any], list[str]] = lambda _: []  # the sweep's, for what cannot wait for its turn
        self.renewals = 0  # clients that were given other rights in place of their own
        self._classes: RightsClasses | None = None
        if book is not None:
            self._classes = RightsClasses(book.tiers, 0, book.groups_named)
            loop.authorizing = True

    # --- rules

    @property
    def changes(self) -> int:
        """How often the rules changed: what was decided at another number is decided again before it is acted on."""
        return self._classes.steps if self._classes is not None else 0

    def moment(self, client: AuthorizedClient) -> tuple[int, int]:
        """Return what moves whenever decisions about a client may be others than before."""
        return self.changes, client.renewals

    def replace(self, book: RuleBook) -> None:
        """Judge by other rules: what is decided from here on, and what was kept, is of them.

        The roles of the cluster stay as they are.
        """
        assert self._book is not None, "an edge without rules begins with some"
        self._judge_by(replace(book, policy=self._book.policy))

    def _judge_by(self, book: RuleBook) -> None:
        assert self._classes is not None, "an edge without rules begins with some"
        if book.filters or self.judges:
            self._loop.drop_routes()  # their subscribers are those who might receive a topic
        self._book = book
        self._classes.step(book.tiers, self._classes.policy_epoch, book.groups_named)
        self._follow(self._classes)

    def bound_by(self, limits: EdgeLimits) -> None:
        """Give no client more than these limits from now on."""
        self._limits = limits
        self._of_listeners.clear()
        self.judge_again()

    def judge_again(self) -> None:
        """Have the sweep look at every client: limits changed."""
        if self._book is not None:
            self._judge_by(self._book)

    def follow_roles(self, view: PolicyView) -> None:
        """Judge by the cluster's roles as they are now, at the listeners that go by them."""
        book = self._book
        if book is not None and book.of_cluster:
            self._judge_by(replace(book, policy=view))

    # --- clients

    def admit(self, client: AuthorizedClient, now: float, address: str = "") -> None:
        """Give a client its rights; its principal and client ID stand."""
        if self._classes is None:
            return
        self._now = now
        principal, name = client.principal, client.policy.name
        if principal is None:
            who = Subject(client.client_id, "", listener=name, address=address)
        else:
            who = Subject(client.client_id, principal.user, principal.common_name, principal.attributes, name, address)
        self._join(client, who)

    def has_joined(self, client: AuthorizedClient) -> bool:
        """Return whether a client's rights are those of its principal of now, by the rules of now."""
        if self._classes is None:
            return True
        rights = client.rights
        return rights is not None and rights.is_current and rights.principal is client.principal

    def renew(self, client: AuthorizedClient, now: float, address: str) -> None:
        """Give an open client other rights in place of its own; the sweep judges its filters in its next turn."""
        self._loop.forget_verdicts(client.conn)
        self.admit(client, now, address)
        client.renewals += 1
        self.renewals += 1
        self._renewed.append(client)

    def take_renewed(self) -> list[AuthorizedClient]:
        """Return the clients whose filters are to be judged again, alone; with them ``renewals`` are dealt with."""
        renewed, self._renewed = self._renewed, []
        return renewed

    def _join(self, client: AuthorizedClient, who: Subject) -> ConnectionRights | None:
        """Give a client the class of its rules of now; the former one is left behind it, so none ends between."""
        book, classes = self._book, self._classes
        if book is None or classes is None:
            return None
        joined = classes.join(book.key(client.policy.name, client.principal, client.client_id), self._now)
        former = client.rights
        self.leave(client)
        self._follow(classes)
        client.rights = ConnectionRights(joined, who, client.principal, former)
        return client.rights

    def _rights_of(self, client: AuthorizedClient) -> ConnectionRights | None:
        """Return a client's rights by the rules of now: another file may give its user other roles."""
        rights = client.rights
        return rights if rights is None or rights.is_current else self._join(client, rights.who)

    def leave(self, client: AuthorizedClient) -> None:
        """Take the rights of a client that is gone; it may do nothing any more."""
        rights, client.rights = client.rights, None
        if rights is not None and self._classes is not None:
            self._classes.leave(rights.rights_class)

    def _follow(self, classes: RightsClasses) -> None:
        """Void what the loop keeps if numbers of classes have new owners, or rules are new."""
        if classes.epoch > self._loop.rights_epoch:
            self._loop.void_verdicts(classes.epoch)

    def opened(self, client: AuthorizedClient, resumed: bool, filters: int, *, untold: bool = False) -> None:
        """Have each push to a session judged that stood before: its filters were granted by rules of another time.

        Whoever may receive every topic is spared that; pushes of topics that begin with $ are judged in any case.

        Args:
            resumed: The session stood before.
            filters: Its partition told so many of it: the sweep judges them.
            untold: It has too many for that: they are read in pages.
        """
        if self._classes is None:
            return
        if resumed and self.grant(client, "#", 2) is not Grant.GRANTED:
            self._loop.judge_pushes_to(client.conn)
        if filters:
            self.resumed.append((client, self.take_groups(client)))
        elif untold:
            self.untold.append(client)

    def may_have_lost(self, client: AuthorizedClient, since: int) -> bool:
        """Return whether a client's rules are others than at a number of ``changes``, and do not grant everything."""
        rights = self._rights_of(client) if self._classes is not None else None
        return rights is not None and rights.changed_at > since and self.grant(client, "#", 2) is not Grant.GRANTED

    def judge_deliveries(self, client: AuthorizedClient) -> None:
        """Have each push to a client judged, until it ends: a filter is granted in part, or rights were taken."""
        if self._classes is not None:
            self._loop.judge_pushes_to(client.conn)

    @property
    def judges(self) -> bool:
        """Whether subscribers of a topic may have filters that are granted in part."""
        return self._book is not None and self._book.filters

    # --- bounds

    def bounds_of(self, client: AuthorizedClient) -> Bounds:
        """Return the bounds of a client whose principal stands, by the limits of now."""
        policy, principal, book = client.policy, client.principal, self._book
        known = self._of_listeners.get(policy.name)
        if known is None or known[0] is not policy:
            known = self._of_listeners[policy.name] = policy, bounds_of_listener(self._limits, policy)
        of_user = principal.limits if principal is not None else {}
        of_roles = book.role_limits(policy.name, principal, client.client_id) if book is not None else []
        return stricter(known[1], (of_user, *of_roles)) if of_user or of_roles else known[1]

    # --- decisions

    def authorize(self, client: AuthorizedClient, topic: bytes, retain: bool) -> int:
        """Return what a client may publish to a topic, as ``Handler.authorize`` does."""
        if self._classes is None:
            return EVERYTHING
        rights = self._rights_of(client)
        if rights is None:
            return 0
        of_edge = self._limits.topic_levels_max
        levels_max = client.bounds.topic_levels_max if client.bounds is not None else of_edge
        is_own = levels_max < of_edge  # its decisions are its own: those of the class are for deeper topics
        if is_own and topic.count(b"/") >= levels_max:
            return TOO_DEEP
        text = topic.decode()
        if not is_own:
            self._loop.join_class(client.conn, rights.rights_class.number)
        verdicts, of_class = rights.verdicts(text, retain or is_own)
        return verdicts | OF_CLASS if of_class and not is_own else verdicts

    def refused(self, client: AuthorizedClient, kind: str, topic: str) -> None:
        """Have the audit note a ``publish``, ``subscribe`` or ``will`` that no rule of a client allows."""
        if client.rights is not None:
            who = client.rights.who
            arguments: dict[str, Scalar] = {"topic": topic}  # no part of the reason: those of one address are one line
            self._audit(
                AuditRecord(
                    kind,
                    "refused",
                    actor=who.user,
                    address=who.address,
                    client_id=who.client_id,
                    arguments=arguments,
                    reason="not authorized",
                )
            )

    def may_publish(self, client: AuthorizedClient, topic: str, qos: int, retain: bool) -> bool:
        """Return whether a message that waited may go out now."""
        if self._book is None:
            return True
        rights = self._rights_of(client)
        return rights is not None and rights.judge_publish(topic, qos, retain)

    def may_will(self, client: AuthorizedClient, topic: str, qos: int, retain: bool) -> bool:
        """Return whether a client may leave a will."""
        if self._book is None:
            return True
        rights = self._rights_of(client)
        return rights is not None and rights.may_will(topic, qos, retain)

    def may_receive(self, client: AuthorizedClient, topic: str, qos: int = 0) -> bool:
        """Return whether a client may be sent a message."""
        if self._book is None:
            return True
        rights = self._rights_of(client)
        return rights is not None and rights.may_receive(topic, qos)

    def grant(self, client: AuthorizedClient, topic_filter: str, qos: int) -> Grant:
        """Return how much of a filter is granted; a part is, only where each delivery is judged."""
        sources = self._book.of(client.policy.name) if self._book is not None else None
        if sources is None:
            return Grant.GRANTED
        rights = self._rights_of(client)
        if rights is None:
            return Grant.REFUSED
        return _granted(rights, sources, topic_filter, qos)

    @property
    def follows_cluster(self) -> bool:
        """Whether rules depend on the cluster's users."""
        return self._book is not None and self._book.of_cluster

    def refused_absent(self, principal: Principal, client_id: str, filters: Sequence[tuple[str, int]]) -> list[str]:
        """Return the filters that no listener here would grant to a client that is not here any more.

        The listener that granted them may be at another edge with the same rules. What depends on more than its names
        (its address, its certificate, what its credentials brought) is not kept, so nothing is refused by such rules.
        """
        book, classes = self._book, self._classes
        if book is None or classes is None or not book.of_cluster:
            return []
        left = list(filters)
        for name, sources in book.by_listener.items():
            if not left or sources.of_credentials:
                return []
            joined = classes.join(book.key(name, principal, client_id), self._now)
            rights = ConnectionRights(joined, Subject(client_id, principal.user, listener=name), principal, None)
            if joined.policy.asks_connection:
                left.clear()
            left = [one for one in left if _granted(rights, sources, *one) is Grant.REFUSED]
            classes.leave(joined)
            self._follow(classes)
        return [topic_filter for topic_filter, _ in left]

    @property
    def judges_nobody(self) -> bool:
        """Whether there are no rules."""
        return self._book is None

    def of_absent(self, principal: Principal | None, client_id: str) -> "AbsentRights":
        """Return the rights, of this moment, that each listener here would give somebody who is not here any more.

        The listener that let it in may be at another edge. Rules that only credentials brought are gone with them:
        where they may have been, what no other rule decides stays as it was decided then.
        """
        book, classes = self._book, self._classes
        if book is None or classes is None:
            return AbsentRights(None)
        user = principal.user if principal is not None else ""
        listeners = []
        for name, sources in book.by_listener.items():
            joined = classes.join(book.key(name, principal, client_id), self._now)
            who = Subject(client_id, user, listener=name)
            listeners.append((joined.policy, who, sources.of_credentials and bool(user)))
            classes.leave(joined)
        self._follow(classes)
        return AbsentRights(listeners)

    # --- turns

    def step(self, now: float) -> None:
        """Note the time; nothing waits here."""
        self._now = now

    def next_deadline(self) -> float:
        """Return infinity: nothing waits here."""
        return math.inf

    def closed(self, client: AuthorizedClient, why: int) -> None:
        """Forget a connection that is gone."""
        del why
        self.leave(client)


class AbsentRights:
    """Rights of somebody who is not here, at the moment at which they were asked for; not to be kept.

    Args:
        listeners: Of each its rules, who that would be there, and whether undecided stays allowed; None: no rules.
    """

    __slots__ = ("_listeners",)

    def __init__(self, listeners: Sequence[tuple[CompiledRules, Subject, bool]] | None) -> None:
        self._listeners = listeners

    def may(self, actions: Sequence[Action], topic: str, qos: int) -> bool:
        """Return whether a listener would let it do all of these."""
        if self._listeners is None:
            return True
        for policy, who, undecided_stays in self._listeners:
            decided = [policy.decided(action, topic, who, qos) for action in actions]
            if all(decided) or (undecided_stays and False not in decided):
                return True
        return False


def _granted(rights: ConnectionRights, sources: Sources, topic_filter: str, qos: int) -> Grant:
    """Return how much of a filter is granted by a listener's rules."""
    grant = rights.grant(topic_filter, qos)
    return Grant.REFUSED if grant is Grant.PARTIAL and not sources.filters else grant
