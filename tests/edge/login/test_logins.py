"""Logins at one edge's core: results of chains, waiting jobs, and changes meanwhile."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from access.identity.certificates import CertificateStep, NameKind, NameUse
from access.identity.password_step import FileUsers, PasswordStep
from access.identity.passwords import HashKind, PasswordRecord
from access.identity.principal import (
    Allow,
    Answer,
    AuthenticationStep,
    Credentials,
    Deny,
    Failed,
    Job,
    Pass,
    Principal,
    TimePoint,
)
from access.limits.bans import Ban
from access.policy.view import PolicyView
from edge.login.auth_jobs import AuthJobs
from edge.node.limits import ListenerPolicy
from mqtt.packets import Connect, Will
from mqtt.reasons import ReasonCode
from tests.edge.edge_harness import START_UTC, Edge, Session, facts
from wire.messages.sessions import Claims, CloseSession, OpenSession, PollClaims, SessionOpened

CLOSED = ListenerPolicy("tls", False)
OPEN = ListenerPolicy("plain", True)
SECRET = b"sixteen bytes at least"


def record(password: bytes) -> PasswordRecord:
    salt = b"a salt of a test"
    return PasswordRecord(HashKind.SHA512, salt, hashlib.sha512(password + salt).digest())


class Fixed:
    """A step with a constant result."""

    name = "fixed"
    methods: tuple[str, ...] = ("FIXED",)

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def begin(self, credentials: Credentials, moment: TimePoint) -> Answer:
        del credentials, moment
        return self.answer

    def resume(self, credentials: Credentials, job: Job, result: object, moment: TimePoint) -> Answer:
        raise AssertionError(credentials, job, result, moment)


class Hashed:
    """An edge with passwords; tests compute its hashes."""

    def __init__(
        self, users: dict[str, bytes], waiting_max: int = 200, more: Sequence[AuthenticationStep] = ()
    ) -> None:
        self.records = {name: record(password) for name, password in users.items()}
        steps: list[AuthenticationStep] = []
        self.edge = Edge(steps=steps)
        self.step = PasswordStep(FileUsers(self.records, SECRET), self.edge.chains.known)
        steps += [self.step, *more]
        self.desk = AuthJobs(waiting_max)
        self.edge.core.logins.add_job_queues({"hash": self.desk})

    def come(self, user: str, password: bytes, client_id: str = "c", version: int = 5, **more: Any) -> Session:
        session = self.edge.accept(CLOSED)
        session.connect(client_id, version, username=user, password=password, **more)
        return session

    def work(self) -> int:
        """Compute queued jobs, and run the edge."""
        done = 0
        while (taken := self.desk.take()) is not None:
            number, ticket = taken
            self.edge.core.logins.done(number, ticket, ticket.job.run())  # type: ignore[attr-defined]
            done += 1
        self.edge.turn()
        return done


def code(session: Session) -> int:
    (connack,) = session.read()
    return int(connack.reason_code)


@pytest.mark.parametrize(
    ("answer", "v5", "v4"),
    [
        (Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "wrong"), 0x86, 4),
        (Deny(ReasonCode.NOT_AUTHORIZED, "expired"), 0x87, 5),
        (Deny(ReasonCode.BANNED, "banned"), 0x8A, 5),
        (Deny(ReasonCode.SUCCESS, "nonsense"), 0x87, 5),
        (Failed("backend"), 0x88, 3),
        (None, 0x88, 3),
        (Pass(), 0x86, 4),
        (Allow(Principal("u\n", "fixed", "c")), 0x87, 5),
        (Allow(Principal("u", "fixed", "x" * 300)), 0x85, 2),
        (Allow(Principal("u", "fixed", "c")), 0, 0),
    ],
)
def test_chain_result_code_by_version(answer: Any, v5: int, v4: int) -> None:
    """Deny, error, an invalid result and no decision refuse; allow admits, and its user owns the claim."""
    for version, expected in ((5, v5), (4, v4), (3, v4)):
        edge = Edge(steps=[Fixed(answer)])
        session = edge.accept(OPEN)
        session.connect("c", version, username="u", password=b"p")
        assert code(session) == expected and session.closed == bool(expected), version
        owners = [message.owner for message in edge.seen if isinstance(message, OpenSession)]
        assert owners == ([] if expected else ["u"])
        refused = [name for name in edge.core.counts if name.startswith("refused_login_")]
        assert len(refused) == bool(v5 and v5 != 0x85)


def test_anonymous_client_loses_its_user_name() -> None:
    """It is not verified."""
    edge = Edge()
    session = edge.accept(OPEN)
    session.connect("c", username="root")
    assert code(session) == 0 and session.client.owner == ""
    assert [message.owner for message in edge.seen if isinstance(message, OpenSession)] == [""]


def test_open_request_and_claim_have_the_same_owner() -> None:
    """A new primary knows the owner of an ephemeral connection only by the claim."""
    edge = Edge(steps=[Fixed(Allow(Principal("u", "fixed", "c", made=7)))])
    session = edge.accept(CLOSED)
    session.connect("c", username="u", password=b"p")
    assert code(session) == 0
    (opened,) = (message for message in edge.seen if isinstance(message, OpenSession))
    edge.core.claims.answer("s0", PollClaims(1, opened.partition, 2))
    (claim,) = next(message.claims for _, message in edge.core.told if isinstance(message, Claims))
    assert (opened.owner, opened.owner_made) == (claim.owner, claim.owner_made) == ("u", 7)


@pytest.mark.parametrize(("use", "user", "client_id"), [("user", "d", "c"), ("client_id", "", "d"), ("both", "d", "d")])
def test_certificate_sets_user_or_client_id(use: str, user: str, client_id: str) -> None:
    """The certificate's client ID replaces the unverified one of CONNECT."""
    step = CertificateStep(NameKind.CN, NameUse(use))
    edge = Edge(steps=[step], read_certificate=lambda _: facts("d"))
    session = edge.accept(CLOSED)
    session.connect("c")
    assert code(session) == 0 and (session.client.owner, session.client.client_id) == (user, client_id)
    assert [each.client_id for each in edge.seen if isinstance(each, OpenSession)] == [client_id]


def test_unreadable_certificate_is_refused() -> None:

    def read(_: object) -> Any:
        raise ValueError

    edge = Edge(read_certificate=read)
    session = edge.accept(OPEN)
    session.connect("c")
    assert code(session) == 0x87 and edge.core.counts["refused_certificate"] == 1


# --- jobs


def test_connack_waits_for_the_hash() -> None:
    """A correct password is accepted, a wrong or unknown one gets 0x86; the next login needs no hash."""
    hashed = Hashed({"u": b"right"})
    sessions = [hashed.come("u", b"right", "a"), hashed.come("u", b"wrong", "b"), hashed.come("x", b"right", "d")]
    assert all(session.read() == [] for session in sessions)
    assert hashed.work() == 3
    assert [code(session) for session in sessions] == [0, 0x86, 0x86]
    again = hashed.come("u", b"right", "e")
    assert code(again) == 0 and hashed.work() == 0
    assert code_after_work(hashed, hashed.come("u", b"wrong", "f")) == 0x86


def code_after_work(hashed: Hashed, session: Session) -> int:
    hashed.work()
    return code(session)


def test_packets_after_connect_wait_for_the_hash() -> None:
    """A client may send before CONNACK (section 3.1.4); its packets have no effect before its login."""
    hashed = Hashed({"u": b"right"})
    for password, published in ((b"right", 1), (b"wrong", 0)):
        session = hashed.come("u", password)
        session.publish("a", b"m", qos=1, identifier=1)
        assert session.read() == []
        hashed.work()
        packets = session.read()
        assert [packet.reason_code for packet in packets[:1]] == [0 if published else 0x86]
        assert session.closed != bool(published)


def test_missing_or_full_queue_refuses() -> None:
    """0x88 without a worker, 0x89 with a full queue; 3 in 3.1.1."""
    edge = Edge(steps=[Hashed({"u": b"p"}).step])
    session = edge.accept(CLOSED)
    session.connect("c", username="u", password=b"p")
    assert code(session) == 0x88
    hashed = Hashed({"u": b"p"}, waiting_max=2)
    sessions = [hashed.come("u", b"p", f"c{number}", 5 if number < 3 else 4) for number in range(4)]
    assert [code(session) for session in sessions[2:]] == [0x89, 3]
    assert hashed.edge.core.counts["refused_login_queue_hash"] == 2
    hashed.work()
    assert [code(session) for session in sessions[:2]] == [0, 0]


def test_result_of_wrong_type_refuses() -> None:
    """A failed worker returns None."""
    hashed = Hashed({"u": b"p"})
    session = hashed.come("u", b"p")
    taken = hashed.desk.take()
    assert taken is not None
    hashed.edge.core.logins.done(*taken, None)
    hashed.edge.turn()
    assert code(session) == 0x88


def test_closed_connection_leaves_the_queue() -> None:
    """Its hash is not computed; a running one is discarded."""
    hashed = Hashed({"u": b"p"})
    waiting, running = hashed.come("u", b"p", "a"), hashed.come("u", b"p", "b")
    waiting.drop()
    taken = hashed.desk.take()
    assert taken is not None and hashed.desk.take() is None
    running.drop()
    hashed.edge.core.logins.done(*taken, True)
    hashed.edge.turn()
    assert not [message for message in hashed.edge.seen if isinstance(message, OpenSession)]


def test_connect_timeout_includes_the_hash() -> None:
    """The client is closed without a response."""
    hashed = Hashed({"u": b"p"})
    session = hashed.come("u", b"p")
    hashed.edge.now += 11
    hashed.edge.core.hot.sweep(hashed.edge.ns)
    hashed.edge.turn()
    assert session.closed and session.read() == [] and len(hashed.desk) == 0


def test_user_reloaded_during_its_hash_is_checked_again() -> None:
    """The former password is checked by the new file."""
    hashed = Hashed({"u": b"old"})
    session = hashed.come("u", b"old")
    hashed.step.replace(FileUsers({"u": record(b"new")}, SECRET))
    hashed.edge.core.logins.permissions_removed()
    for _ in range(3):
        hashed.work()
    assert code(session) == 0x86


# --- changes between the decision and CONNACK


def banned(kind: Any, value: str, until_utc: float = 0.0) -> PolicyView:
    view = PolicyView()
    view.bans.put(Ban(kind, value, until_utc))
    return view


@pytest.mark.parametrize(
    ("kind", "value"), [("user", "d"), ("client_id", "c"), ("certificate", "ab" * 32), ("user", "other")]
)
def test_ban_before_claim_commit_refuses(kind: str, value: str) -> None:
    """0x8A, and the opened session is closed with its will discarded (A3)."""
    for late in (False, True):
        edge = Edge(steps=[CertificateStep(NameKind.CN)], read_certificate=lambda _: facts("d"))
        if not late:
            edge.chains.bans.view = banned(kind, value)
        edge.held.add(OpenSession)
        session = edge.accept(CLOSED)
        session.send(Connect("c", will=Will("w", b"x")))
        edge.chains.bans.view = banned(kind, value)
        opened = edge.take(OpenSession)
        for request in opened:
            answer = edge.reply(request)
            assert answer is not None
            edge.storage(answer)
        edge.turn()
        if value == "other":
            assert code(session) == 0
            continue
        assert code(session) == 0x8A and len(opened) == late
        closes = [message for message in edge.seen if isinstance(message, CloseSession)]
        assert [message.clean for message in closes] == [True] * late


def test_expired_ban_is_ignored() -> None:
    """By this machine's clock."""
    for until, expected in ((START_UTC - 1, 0), (START_UTC + 1, 0x8A)):
        edge = Edge(steps=[CertificateStep(NameKind.CN)], read_certificate=lambda _: facts("d"))
        edge.chains.bans.view = banned("user", "d", until)
        session = edge.accept(CLOSED)
        session.connect("c")
        assert code(session) == expected


def test_permission_removal_before_claim_commit_runs_chain_again() -> None:
    """Accepted if still permitted; otherwise refused and the session closed (A3)."""
    for password, expected in ((b"p", 0), (b"q", 0x86)):
        hashed = Hashed({"u": b"p"})
        edge = hashed.edge
        edge.held.add(OpenSession)
        session = hashed.come("u", b"p")
        hashed.work()
        (request,) = edge.take(OpenSession)
        hashed.step.replace(FileUsers({"u": record(password)}, SECRET))
        edge.core.logins.permissions_removed()
        answer = edge.reply(request)
        assert isinstance(answer, SessionOpened)
        edge.storage(answer)
        edge.turn()
        assert session.read() == [] and hashed.work() == 1
        assert code(session) == expected
        assert bool([each for each in edge.seen if isinstance(each, CloseSession)]) == bool(expected)


def test_disconnect_during_second_chain_run_is_reported() -> None:
    """Otherwise its claim would stay without a connection."""
    hashed = Hashed({"u": b"p"})
    edge = hashed.edge
    edge.held.add(OpenSession)
    session = hashed.come("u", b"p")
    hashed.work()
    (request,) = edge.take(OpenSession)
    hashed.step.replace(FileUsers({"u": record(b"p")}, SECRET))
    edge.core.logins.permissions_removed()
    answer = edge.reply(request)
    assert answer is not None
    edge.storage(answer)
    edge.turn()
    assert not [each for each in edge.seen if isinstance(each, CloseSession)] and len(hashed.desk) == 1
    session.drop()
    assert [each.clean for each in edge.seen if isinstance(each, CloseSession)] == [True]


def test_revoked_certificate_is_refused_by_every_step() -> None:
    """The policy's list applies even with a correct password."""

    class Lists:
        def refusal(self, issuer: str, serial: str, utc: float) -> str:
            return f"revoked by {issuer} at {utc}" if serial == "1f" else ""

    for serial, expected in (("1f", 0x87), ("20", 0)):
        allow = Fixed(Allow(Principal("u", "fixed", "c")))
        edge = Edge(steps=[allow], read_certificate=lambda _, serial=serial: facts("d", serial=serial))  # type: ignore[misc]
        edge.chains.revoked.lists = Lists()
        session = edge.accept(CLOSED)
        session.connect("c", username="u", password=b"p")
        assert code(session) == expected


# --- ends


def test_expired_principal_is_disconnected() -> None:
    """0x87 in DISCONNECT at its expiry, not before."""
    principal = Principal("u", "fixed", "c", expires_at_utc=START_UTC + 5)
    edge = Edge(steps=[Fixed(Allow(principal))])
    session = edge.accept(CLOSED)
    session.connect("c", username="u", password=b"p")
    assert code(session) == 0
    edge.turn(4.5)
    assert not session.closed and edge.core.next_deadline() <= START_UTC + 5
    edge.turn(1.0)
    (disconnect,) = session.read()
    assert disconnect.reason_code == 0x87 and session.closed
    assert edge.core.counts["disconnects_expired"] == 1


@pytest.mark.parametrize("step", [CertificateStep(NameKind.CN), Fixed(Allow(Principal("u", "fixed", "c"))), None])
@pytest.mark.parametrize("version", [4, 5])
def test_expired_certificate_is_disconnected(step: AuthenticationStep | None, version: int) -> None:
    """After any step or none: 0x87 at its notAfter; later CONNECTs with it are refused."""
    shown = structs.replace(facts("d"), expires_at_utc=START_UTC + 600)
    edge = Edge(steps=[step] if step is not None else [], read_certificate=lambda _: shown)
    session = edge.accept(OPEN)
    session.connect("c", version, username="u" if step else None, password=b"p" if step else None)
    assert code(session) == 0
    edge.turn(599.5)
    assert not session.closed
    edge.turn(1.0)
    assert session.closed and edge.core.counts["disconnects_expired"] == 1
    assert [packet.reason_code for packet in session.read()] == ([0x87] if version == 5 else [])
    late = edge.accept(OPEN)
    late.connect("late", version, username="u" if step else None, password=b"p" if step else None)
    assert code(late) == (0x87 if version == 5 else 5)


def test_expiries_of_disconnected_clients_are_removed() -> None:
    """Reconnects with long-lived tokens must not fill the memory."""
    principal = Principal("u", "fixed", "c", expires_at_utc=START_UTC + 1e9)
    edge = Edge(steps=[Fixed(Allow(principal))])
    logins = edge.core.logins
    for number in range(300):
        session = edge.accept(CLOSED)
        session.connect(f"c{number}", username="u", password=b"p")
        session.drop()
    assert logins.ends <= 130


def test_clients_of_removed_user_are_closed() -> None:
    """In slices; others stay."""
    hashed = Hashed({"u": b"p", "v": b"p"})
    gone, stays = hashed.come("u", b"p", "a"), hashed.come("v", b"p", "b")
    hashed.work()
    assert [code(session) for session in (gone, stays)] == [0, 0]
    hashed.edge.core.logins.end_those(lambda client: client.principal is not None and client.principal.user == "u")
    hashed.edge.turn()
    assert [packet.reason_code for packet in gone.read()] == [0x87] and gone.closed and not stays.closed


def test_wrong_password_and_unknown_user_get_equal_packets() -> None:
    hashed = Hashed({"u": b"p"})
    wrong, unknown = hashed.come("u", b"x", "a"), hashed.come("y", b"p", "b")
    hashed.work()
    assert [replace(packet) for packet in wrong.read()] == [replace(packet) for packet in unknown.read()]


@pytest.mark.parametrize(("kind", "value"), [("client_id", "c"), ("address", "192.0.2.1")])
def test_ban_at_listener_without_checks(kind: Any, value: str) -> None:
    """A listener without checks admits at once; a ban before CONNACK applies, one of another client does not."""
    edge = Edge()
    edge.held.add(OpenSession)
    session = edge.accept(OPEN)
    session.connect("c")
    (opening,) = edge.take(OpenSession)
    edge.chains.bans.view.bans.put(Ban(kind, value))
    edge.storage(edge.reply(opening))  # type: ignore[arg-type]
    edge.held.discard(OpenSession)
    edge.turn()
    assert code(session) == (0x8A if kind == "client_id" else 0)
