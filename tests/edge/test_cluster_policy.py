"""The cluster's policy at one edge: in force at once, acknowledged after a check of every client."""

from typing import Any

import pytest
from msgspec.structs import replace

from access.identity.password_step import PasswordStep, RouterUsers
from access.identity.passwords import encode_record, make_record
from access.identity.principal import AuthenticationStep
from access.limits.bans import Ban
from access.policy import commands as c
from access.policy.machine import PolicyMachine
from access.policy.pages import PolicyPages
from access.policy.records import Revoked, RuleRecord
from access.policy.view import encode_view
from conf.settings import ListenerSettings
from edge.listeners.admission_control import AdmissionControl
from edge.login.auth_jobs import AuthJobs
from edge.node.limits import EdgeLimits, ListenerPolicy
from edge.rights.sources import RuleBook, Sources
from mqtt.packets import Will
from mqtt.properties import PropertyId
from router.policy.policy_stream import PolicyStream
from router.policy.user_answers import answers_to
from tests.edge.edge_harness import Edge, Session, facts
from tests.edge.rights.ruled import Vouched, principal
from wire.messages.cluster_map import NodeEntry, NodeState
from wire.messages.control import Control, decode_control
from wire.messages.nodes import Registered
from wire.messages.policy import AskCredentials, FetchUsers, FollowPolicy, PolicyPaged, PolicyStepped, UserRecords
from wire.messages.sessions import CloseSession, OpenSession

CLOSED = ListenerPolicy("tls", False)
SECRET = b"sixteen bytes at least"
HASH, OTHER = (encode_record(make_record(word, bytes(16))) for word in (b"good", b"other"))


class Cluster:
    """An edge and one policy router with a log that tests write."""

    def __init__(self, *before: c.SimpleCommand, roles: bool = False, more: AuthenticationStep | None = None) -> None:
        self.machine = PolicyMachine()
        self.stream = PolicyStream(256 * 1024)
        self.desk = AuthJobs(100)
        rules = RuleBook(dict.fromkeys(("plain", "tls"), Sources(of_cluster=True))) if roles else None
        steps: list[Any] = []
        self.edge = Edge(steps=steps, rules=rules)
        self.core = self.edge.core
        steps += [*([more] if more else []), PasswordStep(RouterUsers(SECRET), self.edge.chains.known)]
        self.core.logins.add_job_queues({"hash": self.desk})
        self.edge.held |= {FollowPolicy, *ASKED}
        for command in before:
            assert self.machine.apply(command).step is not None
        self.core.policy.router_up("r0")
        self.core.node.wake()
        self.run()

    def order(self, *commands: c.SimpleCommand) -> None:
        """Commit commands, and deliver their steps."""
        for command in commands:
            outcome = self.machine.apply(command)
            assert outcome.step is not None, outcome.refusal
            for _, data in self.stream.step(outcome.step):
                self.edge.router(decode_control(data))

    def run(self, seconds: float = 0.0) -> None:
        """Answer requests, compute hashes, and run the edge until it is idle."""
        self.edge.turn(seconds)
        quiet = 0
        for _ in range(50):
            asked = [(node, message) for node, message in self.core.told if isinstance(message, (FollowPolicy, *ASKED))]
            self.edge.take((FollowPolicy, *ASKED))
            said: list[object] = [message for _, message in asked]
            for node, message in asked:
                for answer in self._answers(message):
                    self.edge.router(answer, node=node)
            while (taken := self.desk.take()) is not None:
                said.append(taken)
                number, ticket = taken
                self.core.logins.done(number, ticket, ticket.job.password == PASSWORDS.get(ticket.job.user))  # type: ignore[attr-defined]
            self.edge.turn()
            quiet = quiet + 1 if not said and self.core.access.next_deadline() > self.edge.now else 0
            if quiet == 2:  # the first of two iterations may have sent a request
                return
        raise AssertionError("the edge does not come to rest")

    def _answers(self, message: FollowPolicy | AskCredentials | FetchUsers) -> list[Control]:
        if isinstance(message, AskCredentials | FetchUsers):
            return list(answers_to(message, self.machine))
        said = self.stream.follow(self.edge.now, "e0", 1, message, self.machine)
        return [decode_control(one) if isinstance(one, bytes) else one for one in said]

    def come(self, user: str = "ann", client_id: str = "", password: bytes = b"good") -> Session:
        session = self.edge.accept(CLOSED)
        session.connect(client_id or user, username=user, password=password)
        self.run()
        return session

    @property
    def in_force(self) -> int:
        return self.core.lease.policy_epoch


ASKED = (AskCredentials, FetchUsers)
PASSWORDS = dict.fromkeys(("ann", "bob", "eve"), b"good")
ANN, BOB = c.AddUser("ann", HASH, roles=()), c.AddUser("bob", HASH)
DEVICE = c.PutRole("device", (RuleRecord(True, 31, "a/#"),))


def codes(session: Session) -> list[int]:
    return [int(packet.reason_code) for packet in session.read() if hasattr(packet, "reason_code")]


def test_cluster_user_logs_in_with_password() -> None:
    """Unknown, wrong, disabled and missing passwords are refused, each with its code."""
    cluster = Cluster(ANN, c.AddUser("eve", HASH), c.SetDisabled("eve", True), c.AddUser("mute"))
    assert codes(cluster.come()) == [0]
    assert codes(cluster.come(password=b"bad")) == [0x86]
    assert codes(cluster.come("nobody")) == [0x86]
    assert codes(cluster.come("mute")) == [0x86]
    assert codes(cluster.come("eve")) == [0x87]
    assert cluster.in_force == cluster.core.lease.policy_received == 4


@pytest.mark.parametrize(
    "taking",
    [
        c.SetDisabled("ann", True),
        c.DeleteUser("ann"),
        c.SetPassword("ann", OTHER),
        c.AddBan(Ban("user", "ann")),
        c.AddBan(Ban("client_id", "one")),
    ],
    ids=lambda command: type(command).__name__,
)
def test_policy_step_ends_affected_clients(taking: c.SimpleCommand) -> None:
    """P9 at one node: acknowledged only when the client is closed; others stay."""
    cluster = Cluster(ANN, BOB)
    ann, bob = cluster.come(client_id="one"), cluster.come("bob")
    ann.read(), bob.read()
    before = cluster.in_force
    cluster.order(taking)
    assert cluster.in_force == before, "received is not in force"
    cluster.run()
    assert codes(ann) == [0x87] and ann.closed and not bob.closed
    assert cluster.in_force == cluster.machine.epoch
    assert cluster.core.counts["logins_ended"] == 1


@pytest.mark.parametrize(
    "taking",
    [c.SetDisabled("bob", True), DEVICE, c.AddBan(Ban("user", "bob"))],
    ids=lambda command: type(command).__name__,
)
def test_policy_step_of_other_users_costs_no_hash(taking: c.SimpleCommand) -> None:
    """The password check stays cached; the record is requested each time."""
    cluster = Cluster(ANN, BOB, DEVICE)
    assert codes(cluster.come()) == [0] and len(cluster.edge.chains.known) == 1
    cluster.order(taking if taking is not DEVICE else c.PutRole("device", (RuleRecord(True, 31, "b/#"),)))
    cluster.run()
    assert len(cluster.edge.chains.known) == 1 and codes(cluster.come(client_id="again")) == [0]
    cluster.order(c.SetPassword("ann", OTHER))
    cluster.run()
    assert [*cluster.edge.take(ASKED)] == [] and codes(cluster.come(password=b"bad")) == [0x86]


@pytest.mark.parametrize(
    ("taking", "fires"),
    [
        (c.AddBan(Ban("address", "192.0.2.1")), False),
        (c.AddBan(Ban("network", "192.0.2.0/24")), False),
        (c.AddBan(Ban("certificate", "ab" * 32)), False),
        (c.AddBan(Ban("client_id", "one")), False),
        (c.SetPassword("ann", OTHER), True),  # not a ban: its will stays, and is authorized when it fires
    ],
    ids=lambda value: getattr(value, "ban", value) if not isinstance(value, bool) else "",
)
def test_ban_discards_the_will(taking: c.SimpleCommand, fires: bool) -> None:
    """P9: its partition discards it, because later edges would not know address and certificate."""
    cluster = Cluster(ANN)
    session = cluster.edge.accept(CLOSED)
    session.client.seat = AdmissionControl(ListenerSettings(name="tls", port=0, tls=False), ()).enter("192.0.2.1")
    session.connect("one", username="ann", password=b"good", will=Will("gone"))
    cluster.run()
    assert codes(session) == [0] and session.client.principal is not None
    session.client.principal = replace(session.client.principal, fingerprint="ab" * 32)
    cluster.edge.held.add(CloseSession)
    cluster.order(taking)
    cluster.run()
    (report,) = cluster.edge.take(CloseSession)
    assert session.closed and report.clean is not fires


def test_login_waits_while_user_is_disabled_runs_again() -> None:
    """The user record and the hash are outdated."""
    cluster = Cluster(ANN)
    session = cluster.edge.accept(CLOSED)
    session.connect("c", username="ann", password=b"good")
    (asked,) = cluster.edge.take(ASKED)
    (old,) = answers_to(asked, cluster.machine)
    cluster.order(c.SetDisabled("ann", True))
    cluster.edge.router(old)
    assert cluster.core.counts["users_outdated"] == 1
    cluster.run(1.0)
    assert codes(session) == [0x87]


def test_login_between_chain_and_connack_runs_again() -> None:
    """The session opens during the step."""
    cluster = Cluster(ANN)
    cluster.edge.held.add(OpenSession)
    session = cluster.come()
    (opening,) = cluster.edge.take(OpenSession)
    cluster.order(c.SetDisabled("ann", True))
    cluster.edge.storage(cluster.edge.reply(opening))  # type: ignore[arg-type]
    cluster.edge.held.discard(OpenSession)
    cluster.run(1.0)
    assert codes(session) == [0x87]


@pytest.mark.parametrize("expiry_s", [0, 60])
def test_session_of_repeated_login_is_opened_again(expiry_s: int) -> None:
    """Copies pushed after the response find no connection, and would not be sent again to this one."""
    cluster = Cluster(ANN, BOB)
    cluster.edge.held.add(OpenSession)
    session = cluster.edge.accept(CLOSED)
    session.connect("ann", username="ann", password=b"good", properties={PropertyId.SESSION_EXPIRY_INTERVAL: expiry_s})
    cluster.run()
    (opening,) = cluster.edge.take(OpenSession)
    cluster.order(c.SetDisabled("bob", True))  # another user: the login runs again, and waits for a router
    cluster.edge.storage(cluster.edge.reply(opening))  # type: ignore[arg-type]
    cluster.edge.held.discard(OpenSession)
    cluster.run()
    assert codes(session) == [0x89 if expiry_s else 0]


def test_no_client_before_the_policy_of_the_registration() -> None:
    """C1: a new incarnation does not use a policy from before itself."""
    cluster = Cluster()
    cluster.edge.router(Registered(1, 1, 3))
    session = cluster.edge.accept()
    session.connect("c")
    cluster.run(1.0)
    assert not session.read() and not cluster.core.lease.knows_policy
    cluster.order(ANN, BOB, DEVICE)
    cluster.run(1.0)
    assert codes(session) == [0]


def test_response_of_older_policy_is_ignored() -> None:
    """B2: the user was disabled, and that router does not know it yet."""
    cluster = Cluster(ANN)
    behind = PolicyMachine()
    behind.apply(ANN)
    cluster.order(c.SetDisabled("ann", True))
    cluster.run()
    session = cluster.edge.accept(CLOSED)
    session.connect("c", username="ann", password=b"good")
    (asked,) = cluster.edge.take(ASKED)
    for answer in answers_to(asked, behind):
        cluster.edge.router(answer)
    assert not session.read()
    cluster.run(1.0)
    assert codes(session) == [0x87]


@pytest.mark.parametrize("record", [b"\x91" * 20_000, b"\x93\xa2\xff\xfe\xa0\xa0", b"", b"\x81\xa1a" * 9_000])
def test_unreadable_record_is_counted_and_requested_again(record: bytes) -> None:
    """Invalid UTF-8 raised an uncaught error."""
    cluster = Cluster(ANN)
    session = cluster.edge.accept(CLOSED)
    session.connect("c", username="ann", password=b"good")
    (asked,) = cluster.edge.take(ASKED)
    cluster.edge.router(UserRecords(asked.request, cluster.machine.epoch, ["ann"], [record]))
    assert cluster.core.counts["users_unreadable"] == 1 and not session.closed


def test_login_without_router_is_refused() -> None:
    """0x88 before the connect timeout, and the login leaves no state."""
    cluster = Cluster(ANN)
    session = cluster.edge.accept(CLOSED)
    session.connect("c", username="ann", password=b"good")
    for _ in range(20):
        cluster.edge.turn(0.5)
    assert codes(session) == [0x88] and cluster.core.counts["users_not_told"] == 1


def test_whole_view_checks_every_cluster_user() -> None:
    """The steps between are lost: the edge requests the users from routers."""
    cluster = Cluster(ANN, BOB)
    ann, bob = cluster.come(), cluster.come("bob")
    ann.read(), bob.read()
    for number in range(3_000):  # beyond the steps that a router keeps
        cluster.machine.apply(c.AddBan(Ban("user", f"u{number}")))
    cluster.machine.apply(c.SetDisabled("ann", True))
    cluster.stream = PolicyStream(256 * 1024)
    cluster.core.policy.router_down("r0")
    cluster.core.policy.router_up("r0")
    cluster.core.node.wake()
    cluster.run(1.0)
    assert ann.closed and not bob.closed
    assert cluster.in_force == cluster.machine.epoch


def test_repeated_whole_views_are_rate_limited() -> None:
    """A router that sends view after view without records costs one request at a time."""
    cluster = Cluster(ANN)
    cluster.come()
    for number in range(20):
        cluster.machine.apply(c.AddBan(Ban("user", f"u{number}")))
        shelf = PolicyPages(256 * 1024)
        shelf.put(
            cluster.machine.epoch, encode_view(cluster.machine.epoch, cluster.machine.tables, cluster.machine.digest)
        )
        page = shelf.page(cluster.machine.epoch, 0)
        assert page is not None
        cluster.edge.router(PolicyPaged(page.epoch, page.offset, page.size, page.checksum, page.data))
    cluster.edge.turn()
    cluster.edge.take(ASKED)
    behind = PolicyMachine()
    behind.apply(ANN)
    sent = 0
    for _ in range(100):
        cluster.edge.turn(0.01)
        for asked in cluster.edge.take(ASKED):
            sent += 1
            for answer in answers_to(asked, behind):
                cluster.edge.router(answer)
    assert 1 <= sent <= 11


def test_cluster_roles_follow_policy_steps() -> None:
    """A role that loses a filter removes the subscription; one that gains a topic allows it at once."""
    cluster = Cluster(DEVICE, c.AddUser("ann", HASH, roles=("device",)), BOB, roles=True)
    ann, bob = cluster.come(), cluster.come("bob")
    ann.read(), bob.read()
    ann.subscribe("a/b", "z")
    assert [list(packet.reason_codes) for packet in ann.read()] == [[2, 0x87]]
    ann.publish("z", qos=1, identifier=5)
    bob.publish("a/b", qos=1, identifier=5)
    assert (codes(ann), codes(bob)) == ([0x87], [0x87])
    cluster.order(c.PutRole("device", (RuleRecord(True, 31, "z"),)))
    cluster.run()
    assert not ann.client.subscriptions and cluster.in_force == cluster.machine.epoch
    ann.read()
    ann.publish("z", qos=1, identifier=6)
    assert codes(ann) == [0x10]  # no subscriber there


def test_cluster_roles_survive_a_reload_of_files() -> None:
    cluster = Cluster(DEVICE, c.AddUser("ann", HASH, roles=("device",)), roles=True)
    ann = cluster.come()
    ann.read()
    cluster.core.replace_rules(RuleBook(dict.fromkeys(("plain", "tls"), Sources(of_cluster=True))))
    cluster.run()
    ann.publish("a/b", qos=1, identifier=5)
    assert codes(ann) == [0x10]


def test_revoked_certificate_ends_its_connections() -> None:
    """By issuer and serial number; another one of that issuer stays."""
    vouched = Vouched()
    cluster = Cluster(more=vouched)
    issuer = facts("d1").issuer
    for name, serial in (("d1", "1f"), ("d2", "2f")):
        vouched.known[name] = replace(principal(name, name), serial=serial, issuer=issuer)
    first, second = cluster.come("d1"), cluster.come("d2")
    cluster.order(c.Revoke(Revoked("serial", "1f", issuer)))
    cluster.run()
    assert first.closed and not second.closed


def test_revoked_token_ends_its_connections_and_refuses_new_ones() -> None:
    """By its jti, until that is pruned; another token of the same user stays."""
    vouched = Vouched()
    cluster = Cluster(more=vouched)
    for name, token in (("d1", "jti-1"), ("d2", "jti-2")):
        vouched.known[name] = replace(principal(name, name), token_id=token, expires_at_utc=None)
    first, second = cluster.come("d1"), cluster.come("d2")
    cluster.order(c.Revoke(Revoked("token", "jti-1", "", 10.0)))
    assert cluster.in_force < cluster.machine.epoch
    cluster.run()
    assert first.closed and not second.closed and codes(first) == [0x87]
    assert codes(cluster.come("d1")) == [0x87] and codes(cluster.come("d2")) == [0]
    cluster.order(c.Prune(11.0))
    cluster.run()
    assert codes(cluster.come("d1")) == [0]


def test_token_revocation_has_no_issuer() -> None:
    """With one it would be stored under an unused key."""
    assert "issuer" in PolicyMachine().suppose(c.Revoke(Revoked("token", "jti-1", "ab"))).refusal


def test_ten_thousand_clients_are_checked_in_slices() -> None:
    """No iteration exceeds its bound; the epoch is acknowledged after the last."""
    cluster = Cluster(ANN)
    sessions = [cluster.edge.client(f"c{number}") for number in range(2_000)]
    cluster.order(c.AddBan(Ban("client_id", "c1999")), c.AddBan(Ban("client_id", "c0")))
    turns = 0
    while cluster.in_force < cluster.machine.epoch:
        cluster.core.hot.begin_turn(cluster.edge.ns)
        cluster.core.hot.end_turn(cluster.edge.ns)
        turns += 1
        assert turns < 50
    assert turns >= 5
    assert [session.closed for session in sessions] == [number in (0, 1999) for number in range(2_000)]


def test_registration_has_the_time_without_a_lease() -> None:
    """C4: routers wait this time after the end of its lease."""
    core = Edge(EdgeLimits(sys_interval_s=0, fence_close_s=7.0)).core
    assert core.lease.entry.fence_close_s == 7.0


def test_unrequested_responses_are_ignored() -> None:
    """A late response, and one of another request."""
    cluster = Cluster(ANN)
    cluster.edge.router(UserRecords(99, 5, ["ann"], [None]))
    assert cluster.core.counts["users_unasked"] == 1


def test_lagging_router_is_replaced_by_the_leader() -> None:
    """C7: a heartbeat response names a higher epoch than this router has sent."""
    cluster = Cluster(ANN)
    cluster.edge.register(NodeEntry("r1", "router", 1, "r1:1", state=NodeState.ACTIVE))
    cluster.core.policy.router_up("r1")
    cluster.machine.apply(BOB)
    for _ in range(3):
        cluster.edge.renew(leader="r1", policy_epoch=2)
        cluster.run(0.4)
    assert cluster.core.lease.policy_received == 2 and cluster.core.counts["policy_lagged"] == 1


def test_malformed_step_is_refused_and_requested_again() -> None:
    cluster = Cluster(ANN)
    cluster.edge.router(PolicyStepped(b"\xc1"))
    assert cluster.core.counts["policy_refused"] == 1
    cluster.order(BOB)
    cluster.run(1.0)
    assert cluster.in_force == 2
