"""Permissions of each client of an edge, assigned at its login and used by the loop and other packages.

With any rule book, even an empty one, a client without rules may do nothing. (A core without a book authorizes all; no
edge starts so.) A change of rules makes the loop's cached verdicts void, and each client gets the class of its new
rules before its next operation.
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

ALL_VERDICTS, OF_CLASS, TOO_DEEP = 0x3F, 0x40, 0x80  # Handler.authorize


class AuthorizedClient(Protocol):
    """A client as its authorization uses it."""

    conn: LoopConnection
    policy: ListenerPolicy
    client_id: str
    principal: Principal | None
    rights: ConnectionRights | None
    bounds: Bounds | None
    renewals: int


class ClientRights:
    """The permissions of one edge's clients.

    Args:
        loop: Caches verdicts about publishing.
        book: Rules of each client; None: no authorization.
        limits: Of the edge: no client's bounds are wider.
        audit: Called with a record of each refusal.
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
        # Clients with filters of former connections for the sweep, and the filters already checked at once.
        self.resumed: deque[tuple[AuthorizedClient, list[str]]] = deque()
        self.untold: deque[AuthorizedClient] = deque()  # too many such filters for one message
        # Set by the sweep, for checks that cannot wait for it
        self.revoke_shares: Callable[[Any], list[str]] = lambda _: []
        self.renewals = 0  # clients that got other rights
        self._classes: RightsClasses | None = None
        if book is not None:
            self._classes = RightsClasses(book.tiers, 0, book.groups_named)
            loop.authorizing = True

    # --- rules

    @property
    def changes(self) -> int:
        """Number of rule changes: a decision of another number is repeated before it is used."""
        return self._classes.steps if self._classes is not None else 0

    def decision_version(self, client: AuthorizedClient) -> tuple[int, int]:
        """Return a value that changes whenever decisions about a client may change."""
        return self.changes, client.renewals

    def replace(self, book: RuleBook) -> None:
        """Apply other rules to later decisions and to cached verdicts.

        The roles of the cluster stay unchanged.
        """
        assert self._book is not None, "an edge without rules begins with some"
        self._apply_rules(replace(book, policy=self._book.policy))

    def _apply_rules(self, book: RuleBook) -> None:
        assert self._classes is not None, "an edge without rules begins with some"
        if book.filters or self.judges:
            self._loop.drop_routes()  # their subscribers are the potential receivers of a topic
        self._book = book
        self._classes.step(book.tiers, self._classes.policy_epoch, book.groups_named)
        self._follow(self._classes)

    def bound_by(self, limits: EdgeLimits) -> None:
        """Apply other limits of the edge."""
        self._limits = limits
        self._of_listeners.clear()
        self.judge_again()

    def judge_again(self) -> None:
        """Make the sweep check every client: limits changed."""
        if self._book is not None:
            self._apply_rules(self._book)

    def follow_roles(self, view: PolicyView) -> None:
        """Apply the cluster's current roles at the listeners that use them."""
        book = self._book
        if book is not None and book.of_cluster:
            self._apply_rules(replace(book, policy=view))

    # --- clients

    def admit(self, client: AuthorizedClient, now: float, address: str = "") -> None:
        """Assign a client's rights; its principal and client ID are final."""
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
        """Return whether a client's rights are of its current principal and the current rules."""
        if self._classes is None:
            return True
        rights = client.rights
        return rights is not None and rights.is_current and rights.principal is client.principal

    def renew(self, client: AuthorizedClient, now: float, address: str) -> None:
        """Replace an open client's rights; the sweep authorizes its filters in its next step."""
        self._loop.forget_verdicts(client.conn)
        self.admit(client, now, address)
        client.renewals += 1
        self.renewals += 1
        self._renewed.append(client)

    def pop_renewed(self) -> list[AuthorizedClient]:
        """Return the clients with filters to authorize again; they account for all ``renewals``."""
        renewed, self._renewed = self._renewed, []
        return renewed

    def _join(self, client: AuthorizedClient, who: Subject) -> ConnectionRights | None:
        """Assign a client the class of its current rules; the former class is left after that, so a shared one
        persists.
        """
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
        """Return a client's rights by the current rules: another file may give its user other roles."""
        rights = client.rights
        return rights if rights is None or rights.is_current else self._join(client, rights.who)

    def leave(self, client: AuthorizedClient) -> None:
        """Remove the rights of a disconnected client; it may do nothing any more."""
        rights, client.rights = client.rights, None
        if rights is not None and self._classes is not None:
            self._classes.leave(rights.rights_class)

    def _follow(self, classes: RightsClasses) -> None:
        """Void the loop's cached verdicts if class numbers were reused or rules changed."""
        if classes.epoch > self._loop.rights_epoch:
            self._loop.void_verdicts(classes.epoch)

    def opened(self, client: AuthorizedClient, resumed: bool, filters: int, *, untold: bool = False) -> None:
        """Authorize each push to a resumed session: former rules granted its filters.

        A client with permission to receive every topic is exempt, except for topics that start with $.

        Args:
            resumed: The session existed before.
            filters: Number of filters in the partition's response: the sweep authorizes them.
            untold: They were too many for the response: they are read in pages.
        """
        if self._classes is None:
            return
        if resumed and self.grant(client, "#", 2) is not Grant.GRANTED:
            self._loop.judge_pushes_to(client.conn)
        if filters:
            self.resumed.append((client, self.revoke_shares(client)))
        elif untold:
            self.untold.append(client)

    def may_have_lost(self, client: AuthorizedClient, since: int) -> bool:
        """Return whether a client's rights changed since a number of ``changes``, and do not grant every topic."""
        rights = self._rights_of(client) if self._classes is not None else None
        return rights is not None and rights.changed_at > since and self.grant(client, "#", 2) is not Grant.GRANTED

    def judge_deliveries(self, client: AuthorizedClient) -> None:
        """Authorize each push to a client until it disconnects: a filter is partly granted, or permissions were
        removed.
        """
        if self._classes is not None:
            self._loop.judge_pushes_to(client.conn)

    @property
    def judges(self) -> bool:
        """Whether subscribers of a topic may have partly granted filters."""
        return self._book is not None and self._book.filters

    # --- bounds

    def bounds_of(self, client: AuthorizedClient) -> Bounds:
        """Return the bounds of an authenticated client by the current limits."""
        policy, principal, book = client.policy, client.principal, self._book
        known = self._of_listeners.get(policy.name)
        if known is None or known[0] is not policy:
            known = self._of_listeners[policy.name] = policy, bounds_of_listener(self._limits, policy)
        of_user = principal.limits if principal is not None else {}
        of_roles = book.role_limits(policy.name, principal, client.client_id) if book is not None else []
        return stricter(known[1], (of_user, *of_roles)) if of_user or of_roles else known[1]

    # --- decisions

    def authorize(self, client: AuthorizedClient, topic: bytes, retain: bool) -> int:
        """Return the verdicts of a client's PUBLISH to a topic, as ``Handler.authorize`` does."""
        if self._classes is None:
            return ALL_VERDICTS
        rights = self._rights_of(client)
        if rights is None:
            return 0
        of_edge = self._limits.topic_levels_max
        levels_max = client.bounds.topic_levels_max if client.bounds is not None else of_edge
        is_own = levels_max < of_edge  # its verdicts are its own: those of the class allow deeper topics
        if is_own and topic.count(b"/") >= levels_max:
            return TOO_DEEP
        text = topic.decode()
        if not is_own:
            self._loop.join_class(client.conn, rights.rights_class.number)
        verdicts, of_class = rights.verdicts(text, retain or is_own)
        return verdicts | OF_CLASS if of_class and not is_own else verdicts

    def refused(self, client: AuthorizedClient, kind: str, topic: str) -> None:
        """Audit a ``publish``, ``subscribe`` or ``will`` of a client that no rule allows."""
        if client.rights is not None:
            who = client.rights.who
            arguments: dict[str, Scalar] = {"topic": topic}  # not part of the reason: records of one address are merged
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
        """Return whether a delayed message may be published now."""
        if self._book is None:
            return True
        rights = self._rights_of(client)
        return rights is not None and rights.judge_publish(topic, qos, retain)

    def may_will(self, client: AuthorizedClient, topic: str, qos: int, retain: bool) -> bool:
        """Return whether a client may register a will."""
        if self._book is None:
            return True
        rights = self._rights_of(client)
        return rights is not None and rights.may_will(topic, qos, retain)

    def may_receive(self, client: AuthorizedClient, topic: str, qos: int = 0) -> bool:
        """Return whether a client may receive a message."""
        if self._book is None:
            return True
        rights = self._rights_of(client)
        return rights is not None and rights.may_receive(topic, qos)

    def grant(self, client: AuthorizedClient, topic_filter: str, qos: int) -> Grant:
        """Return how much of a filter is granted; partly only if each delivery is authorized."""
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
        """Return the filters that no listener here would grant to a disconnected client.

        The listener that granted them may be at another edge with the same rules. Rules that depend on unstored data
        (address, certificate, credentials) refuse no filter.
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
    def has_no_rules(self) -> bool:
        """Whether there are no rules."""
        return self._book is None

    def of_absent(self, principal: Principal | None, client_id: str) -> "AbsentRights":
        """Return the current rights that each listener here would give to a disconnected client.

        The listener of its login may be at another edge. Rules of its credentials are unknown now: where they may
        apply, a topic without another matching rule keeps its former decision.
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

    # --- iterations

    def step(self, now: float) -> None:
        """Store the time."""
        self._now = now

    def next_deadline(self) -> float:
        """Return infinity: no work is pending here."""
        return math.inf

    def closed(self, client: AuthorizedClient, why: int) -> None:
        """Remove the rights of a closed connection."""
        del why
        self.leave(client)


class AbsentRights:
    """Rights of a disconnected client at one time; not to be stored.

    Args:
        listeners: For each its rules, the subject there, and whether undecided stays allowed; None: no rules.
    """

    __slots__ = ("_listeners",)

    def __init__(self, listeners: Sequence[tuple[CompiledRules, Subject, bool]] | None) -> None:
        self._listeners = listeners

    def may(self, actions: Sequence[Action], topic: str, qos: int) -> bool:
        """Return whether a listener would allow all of these actions."""
        if self._listeners is None:
            return True
        for policy, who, undecided_stays in self._listeners:
            decided = [policy.decided(action, topic, who, qos) for action in actions]
            if all(decided) or (undecided_stays and False not in decided):
                return True
        return False


def _granted(rights: ConnectionRights, sources: Sources, topic_filter: str, qos: int) -> Grant:
    """Return how much of a filter a listener's rules grant."""
    grant = rights.grant(topic_filter, qos)
    return Grant.REFUSED if grant is Grant.PARTIAL and not sources.filters else grant
