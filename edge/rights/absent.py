"""Authorization of disconnected users: their wills, retained messages, and filters of durable sessions.

| user | is authorized by |
|---|---|
| "", an anonymous client | the rules for anonymous clients |
| a user of the cluster | its current record of a router: removed, disabled or recreated is refused; its current roles |
| another user | bans, and rule files |
| an operator | no rule: its retained messages stay |

A user record is requested from a router once until the policy changes. Without a response there is no decision, and the
caller retries or refuses. Decision: docs/adr/0034-access.md.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from access.identity.principal import Principal
from access.policy.records import User
from access.policy.view import PolicyView, roles_of
from access.rules.rules import Action
from edge.rights.client_rights import AbsentRights, ClientRights
from wire.messages.batches import OPERATOR_MADE
from wire.messages.disconnected_sessions import DisconnectedSession

__all__ = ["AbsentClientMessage", "AbsentUserChecks"]

LookUp = Callable[[str, Callable[[User | None], None]], bool]
WILL = (Action.PUBLISH, Action.WILL)
RETAINED = (Action.PUBLISH, Action.RETAIN)
KNOWN_MAX = 1_000  # cached rights of a page: its topics may have many levels


class AbsentClientMessage(NamedTuple):
    """A will or a retained message with the data to authorize its user."""

    owner: str
    made: int  # policy_epoch at which that user was created; 0: not a user of the cluster
    topic: str
    qos: int
    address: str = ""  # of the client of a will, and its certificate's; "": unknown
    fingerprint: str = ""


class AbsentUserChecks:
    """The authorization of disconnected users at one edge.

    Args:
        rights: Rules of its listeners.
        look_up: Requests a user record of the cluster.
        view: Returns the policy in force.
        utc: Seconds since the epoch, by this machine's clock.
    """

    def __init__(
        self, rights: ClientRights, look_up: LookUp, view: Callable[[], PolicyView], utc: Callable[[], float]
    ) -> None:
        self._rights = rights
        self._look_up = look_up
        self._view = view
        self._utc = utc

    def judge_will(self, will: AbsentClientMessage, client_id: str, retain: bool, then: Callable[[bool], None]) -> bool:
        """Call ``then`` with whether a will may be published; False: no decision is possible now, and it is not
        called.
        """
        actions = (*WILL, Action.RETAIN) if retain else WILL

        def on_user(user: User | None) -> None:
            rights = self._rights_of(will, client_id, user)
            then(rights is not None and rights.may(actions, will.topic, will.qos))

        return self._with_user(will, on_user)

    def check_retained(self, left: Sequence[AbsentClientMessage], then: Callable[[list[bool]], None]) -> None:
        """Call ``then`` with whether each retained message may stay, by its user's current permissions."""
        users: dict[tuple[str, int], User | None] = {}
        wanted = {(one.owner, one.made) for one in left if one.made not in (0, OPERATOR_MADE)}

        def finish() -> None:
            known = _RightsCache(
                lambda one, client_id: self._rights_of(one, client_id, users.get((one.owner, one.made)))
            )
            then([_may_stay(one, known) for one in left])

        def on_user(owner: tuple[str, int], user: User | None) -> None:
            users[owner] = user
            if len(users) == len(wanted):
                finish()

        if not wanted and self._rights.has_no_rules and not len(self._view().bans):
            then([True] * len(left))
            return
        if not wanted:
            finish()
            return
        for owner in _sorted(wanted):
            if not self._look_up(owner[0], partial(on_user, owner)):
                on_user(owner, None)  # too many requests: it is not delivered

    @property
    def judges_users(self) -> bool:
        """Whether rules here depend on the cluster's users."""
        return self._rights.follows_cluster

    def check_filters(self, away: DisconnectedSession, then: Callable[[list[str] | None], None]) -> bool:
        """Call ``then`` with the filters of a disconnected client that its user lost permission for; None: retry later.

        All, if that user was removed. A disabled or banned user keeps them without deliveries, because it may be
        enabled again. A user of a file or a token keeps them too, because no router knows it (docs/adr/0133). False: no
        decision is possible now, and ``then`` is not called.
        """
        if not away.owner_made:
            then([])
            return True

        def on_user(user: User | None) -> None:
            epoch = self._view().epoch
            if away.owner_made > epoch or (user is not None and user.version > epoch):
                then(None)  # by a newer policy than this edge has: it may contain names that are unknown here
            elif user is None or user.made != away.owner_made:
                then([away_filter.topic_filter for away_filter in away.filters])
            elif user.disabled:
                then([])
            else:
                principal = Principal(away.owner, "", away.client_id, roles_of(user, self._view()), made=user.made)
                filters = [(away_filter.topic_filter, away_filter.qos) for away_filter in away.filters]
                then(self._rights.refused_absent(principal, away.client_id, filters))

        return self._look_up(away.owner, on_user)

    def _with_user(self, left: AbsentClientMessage, on_user: Callable[[User | None], None]) -> bool:
        if left.made:
            return self._look_up(left.owner, on_user)
        on_user(None)
        return True

    def _principal(self, left: AbsentClientMessage, client_id: str, user: User | None) -> Principal | None:
        """Return the current principal of a message's user; None if it has no permissions at all."""
        view, utc = self._view(), self._utc()
        bans = view.bans
        if bans.of_address(left.address, utc) or bans.of_principal(left.owner, client_id, left.fingerprint, utc):
            return None
        if not left.made:
            return Principal(left.owner, "", client_id)
        if user is None or user.disabled or user.made != left.made:
            return None
        return Principal(left.owner, "", client_id, roles_of(user, view), made=user.made)

    def _rights_of(self, left: AbsentClientMessage, client_id: str, user: User | None) -> AbsentRights | None:
        """Return the current rights of a message's user; None if it has none at all."""
        principal = self._principal(left, client_id, user)
        if principal is None:
            return None
        return self._rights.of_absent(principal if principal.user else None, client_id)


class _RightsCache:
    """Rights of the users of one page's messages, each looked up once: most pages have few users."""

    def __init__(self, look: Callable[[AbsentClientMessage, str], AbsentRights | None]) -> None:
        self._look = look
        self._known: dict[tuple[str, int, str], AbsentRights | None] = {}

    def of(self, left: AbsentClientMessage, client_id: str) -> AbsentRights | None:
        """Return the rights of a message's user with a client ID; None if it has none at all."""
        key = (left.owner, left.made, client_id)
        if key not in self._known:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = self._look(left, client_id)
        return self._known[key]


def _may_stay(left: AbsentClientMessage, known: _RightsCache) -> bool:
    """Return whether its user may leave a message there with any client ID; the original one is not stored."""
    if left.made == OPERATOR_MADE:
        return True
    for client_id in ("", *dict.fromkeys(left.topic.split("/"))):
        rights = known.of(left, client_id)
        if rights is not None and rights.may(RETAINED, left.topic, left.qos):
            return True
    return False


def _sorted(owners: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(owners)
