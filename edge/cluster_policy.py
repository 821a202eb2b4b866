"""The cluster's policy at one edge: followed, in force for each decision at once, and acknowledged when all are judged.

A step that takes rights away begins a pass over the live clients: those that its users, bans and revocations name are
ended; those whose roles, groups or limits it changes get what they have now. Filters and deliveries are judged by
``edge/rights/sweep.py``. What comes while a pass runs waits for the next one, and the epoch of a pass's beginning is
acknowledged at its end. Source: docs/adr/0034-access.md, rules 1 to 4.

| state | holds | way out |
|---|---|---|
| current | the epoch that came is acknowledged | a step that takes, or a whole view: judging |
| judging | decisions follow what came; the epoch of before is acknowledged | the pass ends: current, or judging again |
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from access.identity.chain import Ticket
from access.identity.principal import Principal
from access.policy.follower import PolicyFollower
from access.policy.records import User, UserEntitlements
from access.policy.step import PolicyStep
from access.policy.view import PolicyView
from edge.login.auth_jobs import AuthJobs
from edge.login.ban_view import BanView
from edge.login.credential_lookups import UserQuestions, principal_now
from edge.login.live_sweep import LiveSweep
from edge.login.logins import ConnectingClient
from edge.node.node import EdgeNode
from wire.messages.control import Control
from wire.messages.nodes import HeartbeatReply
from wire.messages.policy import UserRecords

__all__ = ["ClusterPolicy"]

CLIENTS_OF_TURN = 400  # some 3 us each
USERS_WAITING_MAX = 1_000  # logins that wait for a router to tell a user; more get 0x89, by address in turn


class PolicyLogins(Protocol):
    """Logins, as far as the policy goes."""

    def rights_taken(self) -> None:
        """Trust no answer from before."""

    def end(self, client: ConnectingClient, reason: str) -> None:
        """End a client that is let in no more."""

    def give(self, client: ConnectingClient, principal: Principal) -> None:
        """Have an open client's user be what it is now."""

    def add_desks(self, desks: Mapping[str, AuthJobs]) -> None:
        """Let logins wait for jobs of these kinds."""

    def done(self, number: int, ticket: Ticket, result: object) -> None:
        """Take the result of a job."""


class PolicyRights(Protocol):
    """Rules of clients, as far as the policy goes."""

    @property
    def changes(self) -> int:
        """How often the rules changed."""

    @property
    def renewals(self) -> int:
        """How often a client was given other rights."""

    def follow_roles(self, view: PolicyView) -> None:
        """Judge by these roles of the cluster."""


class _Pass:
    """A pass over live clients, by what was taken before it began."""

    __slots__ = ("changed", "changes", "epoch", "renewals", "users")

    def __init__(self, epoch: int, changes: int, users: set[str], changed: dict[str, UserEntitlements]) -> None:
        self.epoch = epoch
        self.changes = changes
        self.users = users
        self.changed = changed
        self.renewals: int | None = None  # of clients' rights, when all of them were looked at


class ClusterPolicy:
    """The policy at one edge.

    Args:
        node: This edge.
        bans: Whose bans and revocations every chain asks for.
        logins: Logins that wait, and the ends of clients.
        rights: Rules of clients.
        clients: Returns all connections.
        utc: Seconds since the epoch, by this machine's clock.

    Attributes:
        has_judged: Returns whether filters and deliveries of all clients are judged by these ``changes`` and
            ``renewals`` of ``rights``; the sweep's, to be set before the first turn.
        on_taken: Told whom a step took something from, nobody by name where it may be anybody; to be set likewise.
    """

    has_judged: Callable[[int, int], bool]
    on_taken: Callable[[Collection[str]], None]

    def __init__(
        self,
        node: EdgeNode,
        bans: BanView,
        logins: PolicyLogins,
        rights: PolicyRights,
        clients: Callable[[], Sequence[ConnectingClient]],
        utc: Callable[[], float],
    ) -> None:
        self._node = node
        self._bans = bans
        self._logins = logins
        self._rights = rights
        self._clients = clients
        desk = AuthJobs(USERS_WAITING_MAX)
        logins.add_desks({"user": desk})
        self._questions = UserQuestions(node, lambda: node.lease.linked, lambda: bans.view, desk, logins.done)
        self._utc = utc
        self._follower = PolicyFollower(
            node.tell, self._stepped, self._replaced, node.count, lambda router: router in node.lease.linked
        )
        self._live: LiveSweep[ConnectingClient] = LiveSweep(clients, self._end, CLIENTS_OF_TURN)
        self._users: set[str] = set()  # that the next pass ends
        self._changed: dict[str, UserEntitlements] = {}  # users with other roles, groups or limits
        self._due = False
        self._pass: _Pass | None = None
        bans.view = self._follower.view

    def look_up(self, name: str, told: Callable[[User | None], None]) -> bool:
        """Have a user told who is not here (``UserQuestions.look_up``)."""
        self._node.wake()
        return self._questions.look_up(name, told)

    # --- routers

    def router_up(self, router: str) -> None:
        """A link to a router stands."""
        self._follower.router_up(router, self._node.now)

    def router_down(self, router: str) -> None:
        """The link to a router is gone."""
        self._follower.router_down(router, self._node.now)

    def replied(self, router: str, reply: HeartbeatReply) -> None:
        """Take what the leader says of its policy, in its answer to a heartbeat of this edge."""
        if self._node.lease.policy_contradicts(router, reply):
            self._node.count("policy_contradicted")
            self._follower.contradicted(self._node.now, reply.policy_epoch)
        else:
            self._follower.wanted(self._node.now, reply.policy_epoch, reply.leader)

    def handle(self, router: str, message: Control) -> bool:
        """Take a router's message; False if it is not for this part."""
        if isinstance(message, UserRecords):
            self._questions.handle(router, message)
            return True
        taken = self._follower.handle(self._node.now, router, message)
        if not self._follower.next_deadline():
            self._node.wake()  # a whole view is read in slices
        return taken

    # --- the policy moved

    def _stepped(self, step: PolicyStep) -> None:
        if step.roles:
            self._rights.follow_roles(self._follower.view)
        takes = step.takes
        if takes.roles or takes.groups:
            self.on_taken(())
        elif takes.users or takes.changed:
            self.on_taken((*takes.users, *takes.changed))
        if takes:
            self._logins.rights_taken()
            self._users.update(takes.users)
            self._changed.update(takes.changed)
            self._due = True
        self._node.wake()

    def _replaced(self, view: PolicyView) -> None:
        """Judge everybody: a whole view does not say what it takes."""
        if view.epoch <= self._node.lease.policy_received:
            self._pass = None  # of a policy that never was: it acknowledges nothing
            self._node.lease.policy_contradicted(view.epoch, view.digest)
        self._bans.view = view
        self._rights.follow_roles(view)
        self._logins.rights_taken()
        self.on_taken(())
        self._due = True
        admitted: dict[str, set[tuple[int, int]]] = {}  # users -> as whom their clients were let in
        for client in self._clients():
            principal = client.principal
            if principal is not None and _is_of_cluster(principal):
                admitted.setdefault(principal.user, set()).add((principal.made, principal.since))

        def heard(name: str, user: User | None) -> None:
            if user is None or user.disabled or admitted[name] != {(user.made, user.since)}:
                self._users.add(name)  # the pass that waits for the answers ends its clients
            else:
                self._changed[name] = UserEntitlements(user.made, user.roles, user.groups, user.limits)

        self._questions.ask(admitted, heard)
        self._node.wake()

    # --- judging

    def _judge(self, client: ConnectingClient, judging: _Pass) -> bool:
        """Give a client the roles and limits that its user has now; return True if it is let in no more."""
        principal = client.principal
        if principal is None:
            return False  # it waits: its login is judged anew
        if _is_of_cluster(principal):
            if principal.user in judging.users:
                return True
            if client.was_open:
                now = principal_now(principal, judging.changed.get(principal.user), self._bans.view)
                if now is not principal:
                    self._logins.give(client, now)
        view, utc = self._bans.view, self._utc()
        address = client.seat.address if client.seat is not None else ""
        ban = view.bans.of_address(address, utc)
        ban = ban or view.bans.of_principal(principal.user, principal.client_id, principal.fingerprint, utc)
        if ban is not None:
            client.clean = True  # its will goes with it; one that waits is judged when it would fire
            return True
        if principal.token_id and view.is_revoked("token", "", principal.token_id):
            return True
        return bool(principal.serial) and view.is_revoked("serial", principal.issuer, principal.serial)

    def _end(self, client: ConnectingClient) -> None:
        self._logins.end(client, "the cluster's policy")

    def _begin(self) -> None:
        self._due = False
        judging = _Pass(self._follower.received, self._rights.changes, self._users, self._changed)
        self._users, self._changed = set(), {}
        self._pass = judging
        self._live.begin(lambda client: self._judge(client, judging))

    # --- a part of edge/access.py

    def step(self, now: float) -> None:
        """Ask the routers as far as it is due, go on with a pass, and acknowledge."""
        self._follower.step(now)
        self._questions.step(now)
        if self._is_next_due():
            self._begin()
        self._live.step()
        judging = self._pass
        if judging is not None and judging.renewals is None and not self._live.busy:
            judging.renewals = self._rights.renewals
        if judging is not None and not self._is_busy(judging):
            self._pass = None
            self._acknowledge(now, judging.epoch)
        if self._pass is None and not self._due:
            self._acknowledge(now, self._follower.received)
        else:
            self._acknowledge(now, self._node.lease.policy_epoch)

    def _acknowledge(self, now: float, in_force: int) -> None:
        view = self._follower.view
        self._node.lease.follow_policy(now, view.epoch, in_force, view.digest)

    def _is_next_due(self) -> bool:
        return self._due and self._pass is None and not self._questions.asks_again

    def _is_busy(self, judging: _Pass) -> bool:
        return judging.renewals is None or not self.has_judged(judging.changes, judging.renewals)

    def next_deadline(self) -> float:
        """Return when the routers are asked again; at once while a pass runs."""
        judging = self._pass
        if judging is not None and (self._live.busy or not self._is_busy(judging)):
            return 0.0
        if self._is_next_due():
            return 0.0
        return min(self._follower.next_deadline(), self._questions.next_deadline())


def _is_of_cluster(principal: Principal) -> bool:
    """Return whether a principal is one of the cluster's users; those have an epoch at which they were made."""
    return principal.made > 0
