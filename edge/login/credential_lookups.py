"""Requests of user records from routers: for waiting logins, and for live clients to be checked again.

Any router responds at once, by its own policy. After a response of an older epoch than this edge's view, the edge tries
another router; otherwise removed permissions would return. Source: docs/adr/0034-access.md, rule 3.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from access.identity.chain import Ticket
from access.identity.password_step import FetchUser, UserFound, UserRecord
from access.identity.passwords import parse_record
from access.identity.principal import Principal
from access.policy.records import User, UserEntitlements
from access.policy.view import PolicyView, limits_of, roles_of
from edge.login.auth_jobs import AuthJobs
from wire.decoding import Unreadable, strictly
from wire.messages.control import Control
from wire.messages.policy import USERS_ASKED_MAX, AskCredentials, FetchUsers, UserRecords

__all__ = ["UserCallback", "UserQuestions", "principal_now", "record_of"]

ANSWER_S = 0.5  # of a live router
BEHIND_S = 0.1  # until the next request after a response older than this edge's view
ATTEMPTS_MAX = 6  # requests for a login; unlimited for live clients, because the epoch is not acknowledged before
REQUESTS_MAX = 32  # pending requests; a login has its own
LOOKUPS_MAX = USERS_ASKED_MAX  # users in one lookup request, and callbacks for one user
KNOWN_MAX = 10_000  # cached users, until the policy changes

UserCallback = Callable[[str, User | None], None]  # the user of a name
LookupCallback = Callable[[User | None], None]
Done = Callable[[int, Ticket, object], None]


class CredentialLookupIO(Protocol):
    """The edge as these requests use it."""

    @property
    def now(self) -> float:
        """Time of the iteration."""

    def tell(self, node: str, message: Control) -> bool:
        """Send a message; False if there is no link or its queue is full."""

    def count(self, what: str) -> None:
        """Count an event."""


class _UserRequest:
    """Requested names without a response."""

    __slots__ = ("attempts", "heard", "logins", "lookups", "names", "router", "until")

    def __init__(
        self,
        names: set[str],
        logins: dict[str, list[tuple[int, Ticket]]],
        heard: UserCallback | None,
        lookups: dict[str, list[LookupCallback]] | None = None,
    ) -> None:
        self.names = names
        self.logins = logins
        self.lookups = lookups if lookups is not None else {}
        self.heard = heard
        self.attempts = 0
        self.router = ""  # the last one that was sent a request
        self.until = float("-inf")


class UserQuestions:
    """The requests of one edge.

    Args:
        node: This edge.
        routers: Returns the linked routers.
        view: Returns the policy in force here.
        desk: Queue of logins that wait for a user.
        done: Called with the result of a login.
    """

    def __init__(
        self,
        node: CredentialLookupIO,
        routers: Callable[[], Sequence[str]],
        view: Callable[[], PolicyView],
        desk: AuthJobs,
        done: Done,
    ) -> None:
        self._node = node
        self._routers = routers
        self._view = view
        self._desk = desk
        self._done = done
        self._pending: dict[int, _UserRequest] = {}  # by their last request number
        self._numbers = itertools.count(1)
        self._next_router = 0
        self._lookups: dict[str, list[LookupCallback]] = {}  # not requested yet
        self._known: dict[str, User | None] = {}  # looked-up users, by the view of ``_known_at``
        self._known_at: tuple[int, bytes] = (-1, b"")

    def look_up(self, name: str, told: LookupCallback) -> bool:
        """Call ``told`` with the record of a user, at once if it is cached for the current view.

        Returns:
            False: too many are pending, and ``told`` is not called; neither is it while no router responds in time.
        """
        if self._known_at != self._state():
            self._known.clear()
            self._known_at = self._state()
        if name in self._known:
            told(self._known[name])
            return True
        waiting = (
            self._lookups.setdefault(name, []) if name in self._lookups or len(self._lookups) < LOOKUPS_MAX else None
        )
        if waiting is None or len(waiting) >= LOOKUPS_MAX:
            self._node.count("users_not_looked_up")
            return False
        waiting.append(told)
        return True

    def ask(self, names: Iterable[str], heard: UserCallback) -> None:
        """Request users until a router has returned each of them by a policy at least as new as this edge's.

        A new call cancels the former one: a new view names every live user again.
        """
        former = [number for number, question in self._pending.items() if question.heard is not None]
        for number in former:
            del self._pending[number]
        wanted = sorted(set(names))
        for at in range(0, len(wanted), USERS_ASKED_MAX):
            self._send(_UserRequest(set(wanted[at : at + USERS_ASKED_MAX]), {}, heard))

    @property
    def has_live_requests(self) -> bool:
        """Whether live clients wait for user records."""
        return any(question.heard is not None for question in self._pending.values())

    def step(self, now: float) -> None:
        """Send requests of pending names, and retry those without a response."""
        for number in [number for number, question in self._pending.items() if now >= question.until]:
            self._send(self._pending.pop(number))
        while len(self._pending) < REQUESTS_MAX and (taken := self._desk.take()) is not None:
            self._send(_login_request(taken))
        if self._lookups and len(self._pending) < REQUESTS_MAX:
            lookups, self._lookups = self._lookups, {}
            self._send(_UserRequest(set(lookups), {}, None, lookups))

    def _send(self, question: _UserRequest) -> None:
        if question.heard is None and question.attempts >= ATTEMPTS_MAX:
            self._node.count("users_not_told")
            for waiting in question.logins.values():
                for number, ticket in waiting:
                    self._done(number, ticket, None)
            return
        routers = self._routers()
        number = next(self._numbers)
        question.attempts += 1
        question.until = self._node.now + ANSWER_S
        self._pending[number] = question
        if routers:
            self._next_router += 1
            question.router, names = routers[self._next_router % len(routers)], sorted(question.names)
            is_login = bool(question.logins)
            self._node.tell(question.router, AskCredentials(number, *names) if is_login else FetchUsers(number, names))

    def handle(self, router: str, message: UserRecords) -> None:
        """Handle a router's response; an outdated or unrequested one is ignored."""
        question = self._pending.get(message.request)
        if question is None or router != question.router:
            self._node.count("users_unasked")
            return
        if message.epoch < self._view().epoch:
            self._node.count("users_outdated")
            question.until = self._node.now + BEHIND_S
            return
        for name, data in zip(message.names, message.records, strict=False):
            if name not in question.names:
                continue
            try:
                user = _decode(data) if data is not None else None
            except Unreadable:
                self._node.count("users_unreadable")
                continue  # retried at another router
            question.names.discard(name)
            self._tell(question, name, user)
        if not question.names:
            del self._pending[message.request]

    def _tell(self, question: _UserRequest, name: str, user: User | None) -> None:
        if question.heard is not None:
            question.heard(name, user)
        record = record_of(user, self._view()) if user is not None else None
        for number, ticket in question.logins.pop(name, ()):
            self._done(number, ticket, UserFound(name, record))
        lookups = question.lookups.pop(name, ())
        if lookups and self._known_at == self._state() and len(self._known) < KNOWN_MAX:
            self._known[name] = user
        for told in lookups:
            told(user)

    def _state(self) -> tuple[int, bytes]:
        view = self._view()
        return view.epoch, view.digest

    def next_deadline(self) -> float:
        """Return when the next request or retry is due."""
        if self._lookups and len(self._pending) < REQUESTS_MAX:
            return float("-inf")
        return min((question.until for question in self._pending.values()), default=float("inf"))


_decode = strictly(msgspec.msgpack.Decoder(User).decode, "user")


def _login_request(login: tuple[int, Ticket]) -> _UserRequest:
    """Return the request of one login: routers send credentials one at a time, and count them."""
    job = login[1].job
    assert isinstance(job, FetchUser)
    return _UserRequest({job.user}, {job.user: [login]}, None)


def record_of(user: User, view: PolicyView) -> UserRecord | None:
    """Return the record of a user for the chain; None without a password and a verifier, as for an unknown user."""
    try:
        password = parse_record(user.record)
    except ValueError:
        password = None
    if password is None and not user.verifier:
        return None
    return UserRecord(
        password,
        user.version,
        user.made,
        user.since,
        user.disabled,
        roles_of(user, view),
        limits=limits_of(user, view),
        groups=user.groups,
        own_roles=user.roles,
        own_limits=user.limits,
        verifier=user.verifier,
    )


def principal_now(principal: Principal, standing: UserEntitlements | None, view: PolicyView) -> Principal:
    """Return a cluster user's principal with its current roles and limits; the same object if they did not change.

    Args:
        principal: Of the authenticated client.
        standing: The changed entitlements of its user, None if unchanged; ignored if that user was recreated.
        view: The policy in force.
    """
    if standing is None or standing.made != principal.made:
        standing = UserEntitlements(principal.made, principal.own_roles, principal.groups, dict(principal.own_limits))
    now = msgspec.structs.replace(
        principal,
        roles=roles_of(standing, view),
        limits=limits_of(standing, view),
        groups=standing.groups,
        own_roles=standing.roles,
        own_limits=standing.limits,
    )
    return principal if now == principal else now
