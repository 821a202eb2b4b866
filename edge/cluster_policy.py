"""The cluster's policy at one edge: in force at once, acknowledged after a pass over all clients.

A policy step that removes permissions starts a pass over the live clients. It ends clients that its users, bans and
revocations name, and gives the others their new roles, groups and limits. ``edge/rights/sweep.py`` authorizes filters
and deliveries. A step during a pass waits for the next one; a pass acknowledges the epoch of its start at its end.
Source: docs/adr/0034-access.md, rules 1 to 4.

| state | meaning | transition |
|---|---|---|
| current | the received epoch is acknowledged | a removing step, or a whole view: judging |
| judging | decisions follow the new policy; the former epoch stays | the pass ends: current, or judging again |
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

CLIENTS_PER_ITERATION = 400  # some 3 us each
USER_QUEUE_MAX = 1_000  # logins pending for a user record of a router; more get 0x89, fairly by address


class PolicyLogins(Protocol):
    """The logins that the policy affects."""

    def permissions_removed(self) -> None:
        """Discard earlier responses."""

    def end(self, client: ConnectingClient, reason: str) -> None:
        """End a client that is no longer permitted."""

    def give(self, client: ConnectingClient, principal: Principal) -> None:
        """Replace an open client's principal."""

    def add_job_queues(self, desks: Mapping[str, AuthJobs]) -> None:
        """Add queues for jobs of these kinds."""

    def done(self, number: int, ticket: Ticket, result: object) -> None:
        """Handle the result of a job."""


class PolicyRights(Protocol):
    """The rules that the policy affects."""

    @property
    def changes(self) -> int:
        """How often the rules changed."""

    @property
    def renewals(self) -> int:
        """How often a client got other rights."""

    def follow_roles(self, view: PolicyView) -> None:
        """Apply these roles of the cluster."""


class _Pass:
    """A pass over live clients for the steps before its start."""

    __slots__ = ("changed", "changes", "epoch", "renewals", "users")

    def __init__(self, epoch: int, changes: int, users: set[str], changed: dict[str, UserEntitlements]) -> None:
        self.epoch = epoch
        self.changes = changes
        self.users = users
        self.changed = changed
        self.renewals: int | None = None  # of clients' rights, at the end of the pass


class ClusterPolicy:
    """The policy at one edge.

    Args:
        node: This edge.
        bans: Bans and revocations, read by every chain.
        logins: Pending logins, and the ends of clients.
        rights: Rules of clients.
        clients: Returns all connections.
        utc: Seconds since the epoch, by this machine's clock.

    Attributes:
        is_applied: Returns whether filters and deliveries of all clients are authorized by these ``changes`` and
            ``renewals`` of ``rights``; the sweep's, to be set before the first iteration.
        on_permissions_removed: Called with the users that lost permissions, empty if any user may have; to be set
            likewise.
    """

    is_applied: Callable[[int, int], bool]
    on_permissions_removed: Callable[[Collection[str]], None]

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
        queue = AuthJobs(USER_QUEUE_MAX)
        logins.add_job_queues({"user": queue})
        self._questions = UserQuestions(node, lambda: node.lease.linked, lambda: bans.view, queue, logins.done)
        self._utc = utc
        self._follower = PolicyFollower(
            node.tell, self._stepped, self._replaced, node.count, lambda router: router in node.lease.linked
        )
        self._live: LiveSweep[ConnectingClient] = LiveSweep(clients, self._end, CLIENTS_PER_ITERATION)
        self._users: set[str] = set()  # that the next pass ends
        self._changed: dict[str, UserEntitlements] = {}  # users with other roles, groups or limits
        self._due = False
        self._pass: _Pass | None = None
        bans.view = self._follower.view

    def look_up(self, name: str, told: Callable[[User | None], None]) -> bool:
        """Request a user record that this edge does not have (``UserQuestions.look_up``)."""
        self._node.wake()
        return self._questions.look_up(name, told)

    # --- routers

    def router_up(self, router: str) -> None:
        """Handle a new link to a router."""
        self._follower.router_up(router, self._node.now)

    def router_down(self, router: str) -> None:
        """Handle the end of the link to a router."""
        self._follower.router_down(router, self._node.now)

    def replied(self, router: str, reply: HeartbeatReply) -> None:
        """Handle the leader's policy epoch in a heartbeat response."""
        if self._node.lease.policy_contradicts(router, reply):
            self._node.count("policy_contradicted")
            self._follower.contradicted(self._node.now, reply.policy_epoch)
        else:
            self._follower.wanted(self._node.now, reply.policy_epoch, reply.leader)

    def handle(self, router: str, message: Control) -> bool:
        """Handle a router's message; False if it is not for this part."""
        if isinstance(message, UserRecords):
            self._questions.handle(router, message)
            return True
        taken = self._follower.handle(self._node.now, router, message)
        if not self._follower.next_deadline():
            self._node.wake()  # a whole view is read in slices
        return taken

    # --- changes of the policy

    def _stepped(self, step: PolicyStep) -> None:
        if step.roles:
            self._rights.follow_roles(self._follower.view)
        takes = step.takes
        if takes.roles or takes.groups:
            self.on_permissions_removed(())
        elif takes.users or takes.changed:
            self.on_permissions_removed((*takes.users, *takes.changed))
        if takes:
            self._logins.permissions_removed()
            self._users.update(takes.users)
            self._changed.update(takes.changed)
            self._due = True
        self._node.wake()

    def _replaced(self, view: PolicyView) -> None:
        """Check all clients: a whole view does not list the removed permissions."""
        if view.epoch <= self._node.lease.policy_received:
            self._pass = None  # a pass for a discarded policy acknowledges no epoch
            self._node.lease.policy_contradicted(view.epoch, view.digest)
        self._bans.view = view
        self._rights.follow_roles(view)
        self._logins.permissions_removed()
        self.on_permissions_removed(())
        self._due = True
        admitted: dict[str, set[tuple[int, int]]] = {}  # users -> versions of them that their clients authenticated as
        for client in self._clients():
            principal = client.principal
            if principal is not None and _is_of_cluster(principal):
                admitted.setdefault(principal.user, set()).add((principal.made, principal.since))

        def on_user(name: str, user: User | None) -> None:
            if user is None or user.disabled or admitted[name] != {(user.made, user.since)}:
                self._users.add(name)  # the pass after the responses ends its clients
            else:
                self._changed[name] = UserEntitlements(user.made, user.roles, user.groups, user.limits)

        self._questions.ask(admitted, on_user)
        self._node.wake()

    # --- passes over clients

    def _apply_or_reject(self, client: ConnectingClient, current: _Pass) -> bool:
        """Give a client the current roles and limits of its user; return True if it is no longer permitted."""
        principal = client.principal
        if principal is None:
            return False  # its login is pending and uses the new policy
        if _is_of_cluster(principal):
            if principal.user in current.users:
                return True
            if client.was_open:
                now = principal_now(principal, current.changed.get(principal.user), self._bans.view)
                if now is not principal:
                    self._logins.give(client, now)
        view, utc = self._bans.view, self._utc()
        address = client.seat.address if client.seat is not None else ""
        ban = view.bans.of_address(address, utc)
        ban = ban or view.bans.of_principal(principal.user, principal.client_id, principal.fingerprint, utc)
        if ban is not None:
            client.clean = True  # its will is discarded; a pending will is authorized when it would fire
            return True
        if principal.token_id and view.is_revoked("token", "", principal.token_id):
            return True
        return bool(principal.serial) and view.is_revoked("serial", principal.issuer, principal.serial)

    def _end(self, client: ConnectingClient) -> None:
        self._logins.end(client, "the cluster's policy")

    def _begin(self) -> None:
        self._due = False
        current = _Pass(self._follower.received, self._rights.changes, self._users, self._changed)
        self._users, self._changed = set(), {}
        self._pass = current
        self._live.begin(lambda client: self._apply_or_reject(client, current))

    # --- a part of edge/access.py

    def step(self, now: float) -> None:
        """Send due requests to the routers, continue the pass, and acknowledge."""
        self._follower.step(now)
        self._questions.step(now)
        if self._is_next_due():
            self._begin()
        self._live.step()
        current = self._pass
        if current is not None and current.renewals is None and not self._live.busy:
            current.renewals = self._rights.renewals
        if current is not None and not self._is_busy(current):
            self._pass = None
            self._acknowledge(now, current.epoch)
        if self._pass is None and not self._due:
            self._acknowledge(now, self._follower.received)
        else:
            self._acknowledge(now, self._node.lease.policy_epoch)

    def _acknowledge(self, now: float, in_force: int) -> None:
        view = self._follower.view
        self._node.lease.follow_policy(now, view.epoch, in_force, view.digest)

    def _is_next_due(self) -> bool:
        return self._due and self._pass is None and not self._questions.has_live_requests

    def _is_busy(self, current: _Pass) -> bool:
        return current.renewals is None or not self.is_applied(current.changes, current.renewals)

    def next_deadline(self) -> float:
        """Return when the next request to routers is due; at once during a pass."""
        current = self._pass
        if current is not None and (self._live.busy or not self._is_busy(current)):
            return 0.0
        if self._is_next_due():
            return 0.0
        return min(self._follower.next_deadline(), self._questions.next_deadline())


def _is_of_cluster(principal: Principal) -> bool:
    """Return whether a principal is a user of the cluster; those have a creation epoch."""
    return principal.made > 0
