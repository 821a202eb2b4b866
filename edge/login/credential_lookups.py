"""Questions about the cluster's users: of logins that wait for one, and of live clients that are to be judged again.

Any router answers at once, by the policy that it has. An answer of an older epoch than this edge's own view is asked of
another router, or rights that were taken would come back by it. Source: docs/adr/0034-access.md, rule 3.
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

__all__ = ["Heard", "UserQuestions", "principal_now", "record_of"]

ANSWER_S = 0.5  # of a router that lives
BEHIND_S = 0.1  # until a router that is behind this edge's view is asked again, or another one
ASKS_MAX = 6  # of a login; of live clients there is no end, as nobody acknowledges before
QUESTIONS_MAX = 32  # under way; a login has one of its own
LOOKS_MAX = USERS_ASKED_MAX  # users who are looked up at once, and who wait for one
KNOWN_MAX = 10_000  # users who were looked up, until the policy moves

Heard = Callable[[str, User | None], None]  # the user of a name
Told = Callable[[User | None], None]
Done = Callable[[int, Ticket, object], None]


class CredentialLookupIO(Protocol):
    """This edge, as far as questions go."""

    @property
    def now(self) -> float:
        """Time of the turn."""

    def tell(self, node: str, message: Control) -> bool:
        """Send a message; False when there is no link or no room."""

    def count(self, what: str) -> None:
        """Count an event."""


class _Question:
    """Names that were asked for and not told yet."""

    __slots__ = ("asks", "heard", "logins", "looks", "names", "router", "until")

    def __init__(
        self,
        names: set[str],
        logins: dict[str, list[tuple[int, Ticket]]],
        heard: Heard | None,
        looks: dict[str, list[Told]] | None = None,
    ) -> None:
        self.names = names
        self.logins = logins
        self.looks = looks if looks is not None else {}
        self.heard = heard
        self.asks = 0
        self.router = ""  # that was asked last
        self.until = float("-inf")


class UserQuestions:
    """Questions of one edge.

    Args:
        node: This edge.
        routers: Returns those that a link stands to.
        view: Returns the policy in force here.
        desk: Where logins wait for a user.
        done: Takes a login's answer.
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
        self._questions: dict[int, _Question] = {}  # by the request that was sent last
        self._numbers = itertools.count(1)
        self._turn = 0
        self._looks: dict[str, list[Told]] = {}  # to be asked
        self._known: dict[str, User | None] = {}  # that were looked up, by the view of ``_known_at``
        self._known_at: tuple[int, bytes] = (-1, b"")

    def look_up(self, name: str, told: Told) -> bool:
        """Have a user told who is not here, at once if it is known by the view in force.

        Returns:
            False: too many wait, and nothing will be told. Nor is anything told while no router answers in time.
        """
        if self._known_at != self._state():
            self._known.clear()
            self._known_at = self._state()
        if name in self._known:
            told(self._known[name])
            return True
        waiting = self._looks.setdefault(name, []) if name in self._looks or len(self._looks) < LOOKS_MAX else None
        if waiting is None or len(waiting) >= LOOKS_MAX:
            self._node.count("users_not_looked_up")
            return False
        waiting.append(told)
        return True

    def ask(self, names: Iterable[str], heard: Heard) -> None:
        """Ask for users until some router has told each of them by a policy that is no older than this edge's.

        Those of a former call are asked for no more: a new view names every live one again.
        """
        former = [number for number, question in self._questions.items() if question.heard is not None]
        for number in former:
            del self._questions[number]
        wanted = sorted(set(names))
        for at in range(0, len(wanted), USERS_ASKED_MAX):
            self._send(_Question(set(wanted[at : at + USERS_ASKED_MAX]), {}, heard))

    @property
    def asks_again(self) -> bool:
        """Whether live clients wait to be judged."""
        return any(question.heard is not None for question in self._questions.values())

    def step(self, now: float) -> None:
        """Ask for those who wait, and ask again what got no answer."""
        for number in [number for number, question in self._questions.items() if now >= question.until]:
            self._send(self._questions.pop(number))
        while len(self._questions) < QUESTIONS_MAX and (taken := self._desk.take()) is not None:
            self._send(_question_of(taken))
        if self._looks and len(self._questions) < QUESTIONS_MAX:
            looks, self._looks = self._looks, {}
            self._send(_Question(set(looks), {}, None, looks))

    def _send(self, question: _Question) -> None:
        if question.heard is None and question.asks >= ASKS_MAX:
            self._node.count("users_not_told")
            for waiting in question.logins.values():
                for number, ticket in waiting:
                    self._done(number, ticket, None)
            return
        routers = self._routers()
        number = next(self._numbers)
        question.asks += 1
        question.until = self._node.now + ANSWER_S
        self._questions[number] = question
        if routers:
            self._turn += 1
            question.router, names = routers[self._turn % len(routers)], sorted(question.names)
            is_login = bool(question.logins)
            self._node.tell(question.router, AskCredentials(number, *names) if is_login else FetchUsers(number, names))

    def handle(self, router: str, message: UserRecords) -> None:
        """Take a router's answer; one that is too old, or that nobody asked for, tells nothing."""
        question = self._questions.get(message.request)
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
                continue  # asked again: of another router
            question.names.discard(name)
            self._tell(question, name, user)
        if not question.names:
            del self._questions[message.request]

    def _tell(self, question: _Question, name: str, user: User | None) -> None:
        if question.heard is not None:
            question.heard(name, user)
        record = record_of(user, self._view()) if user is not None else None
        for number, ticket in question.logins.pop(name, ()):
            self._done(number, ticket, UserFound(name, record))
        looks = question.looks.pop(name, ())
        if looks and self._known_at == self._state() and len(self._known) < KNOWN_MAX:
            self._known[name] = user
        for told in looks:
            told(user)

    def _state(self) -> tuple[int, bytes]:
        view = self._view()
        return view.epoch, view.digest

    def next_deadline(self) -> float:
        """Return when a question is asked, or asked again."""
        if self._looks and len(self._questions) < QUESTIONS_MAX:
            return float("-inf")
        return min((question.until for question in self._questions.values()), default=float("inf"))


_decode = strictly(msgspec.msgpack.Decoder(User).decode, "user")


def _question_of(login: tuple[int, Ticket]) -> _Question:
    """Return the question of one login: routers send credentials for one at a time, and count them."""
    job = login[1].job
    assert isinstance(job, FetchUser)
    return _Question({job.user}, {job.user: [login]}, None)


def record_of(user: User, view: PolicyView) -> UserRecord | None:
    """Return what a step takes of a user: None without a password and a verifier, which is as good as nobody."""
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
    """Return a client of the cluster's users with its roles and limits of now; the same object where nothing moved.

    Args:
        principal: Whom it was let in as.
        standing: That a step told of its user, None if none did; of another user of that name it is not its own.
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
