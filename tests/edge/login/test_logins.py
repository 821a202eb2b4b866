"""Logins at one edge's core: each answer of a chain, jobs that wait, and what comes while they do."""

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
    """A step that always answers the same."""

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
    """An edge with passwords, whose hashes are computed when a test says so."""

    def __init__(
        self, users: dict[str, bytes], waiting_max: int = 200, more: Sequence[AuthenticationStep] = ()
    ) -> None:
        self.records = {name: record(password) for name, password in users.items()}
        steps: list[AuthenticationStep] = []
        self.edge = Edge(steps=steps)
        self.step = PasswordStep(FileUsers(self.records, SECRET), self.edge.chains.known)
        steps += [self.step, *more]
        self.desk = AuthJobs(waiting_max)
        self.edge.core.logins.add_desks({"hash": self.desk})

    def come(self, user: str, password: bytes, client_id: str = "c", version: int = 5, **more: Any) -> Session:
        session = self.edge.accept(CLOSED)
        session.connect(client_id, version, username=user, password=password, **more)
        return session

    def work(self) -> int:
        """Compute what waits, and let the edge judge it."""
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
def test_every_answer_in_every_version(answer: Any, v5: int, v4: int) -> None:
    """Deny, error, nonsense and nobody's refuse; only allow lets in, and its user owns the claim."""
    for version, expected in ((5, v5), (4, v4), (3, v4)):
        edge = Edge(steps=[Fixed(answer)])
        session = edge.accept(OPEN)
        session.connect("c", version, username="u", password=b"p")
        assert code(session) == expected and session.closed == bool(expected), version
        owners = [message.owner for message in edge.seen if isinstance(message, OpenSession)]
        assert owners == ([] if expected else ["u"])
        refused = [name for name in edge.core.counts if name.startswith("refused_login_")]
        assert len(refused) == bool(v5 and v5 != 0x85)


def test_the_name_that_an_anonymous_client_gives_is_dropped() -> None:
    """It would be a claim that nobody verified."""
    edge = Edge()
    session = edge.accept(OPEN)
    session.connect("c", username="root")
    assert code(session) == 0 and session.client.owner == ""
    assert [message.owner for message in edge.seen if isinstance(message, OpenSession)] == [""]


def test_open_and_claim_name_one_owner() -> None:
    """A new primary learns of a connection without a row by the claim alone."""
    edge = Edge(steps=[Fixed(Allow(Principal("u", "fixed", "c", made=7)))])
    session = edge.accept(CLOSED)
    session.connect("c", username="u", password=b"p")
    assert code(session) == 0
    (opened,) = (message for message in edge.seen if isinstance(message, OpenSession))
    edge.core.claims.answer("s0", PollClaims(1, opened.partition, 2))
    (claim,) = next(message.claims for _, message in edge.core.told if isinstance(message, Claims))
    assert (opened.owner, opened.owner_made) == (claim.owner, claim.owner_made) == ("u", 7)


@pytest.mark.parametrize(("use", "user", "client_id"), [("user", "d", "c"), ("client_id", "", "d"), ("both", "d", "d")])
def test_a_certificate_names_user_or_client_id(use: str, user: str, client_id: str) -> None:
    """The client ID of the certificate replaces the one of CONNECT, which nobody verified."""
    step = CertificateStep(NameKind.CN, NameUse(use))
    edge = Edge(steps=[step], read_certificate=lambda _: facts("d"))
    session = edge.accept(CLOSED)
    session.connect("c")
    assert code(session) == 0 and (session.client.owner, session.client.client_id) == (user, client_id)
    assert [each.client_id for each in edge.seen if isinstance(each, OpenSession)] == [client_id]


def test_an_unreadable_certificate_refuses() -> None:
    """Whatever else the listener would take."""

    def read(_: object) -> Any:
        raise ValueError

    edge = Edge(read_certificate=read)
    session = edge.accept(OPEN)
    session.connect("c")
    assert code(session) == 0x87 and edge.core.counts["refused_certificate"] == 1


# --- jobs


def test_a_client_waits_for_its_hash() -> None:
    """No CONNACK before it; a right password lets in, a wrong or unknown one gets 0x86; the next login is known."""
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


def test_packets_behind_connect_wait_for_the_hash() -> None:
    """A client may send before CONNACK (section 3.1.4); nothing of it acts before it is let in."""
    hashed = Hashed({"u": b"right"})
    for password, published in ((b"right", 1), (b"wrong", 0)):
        session = hashed.come("u", password)
        session.publish("a", b"m", qos=1, identifier=1)
        assert session.read() == []
        hashed.work()
        packets = session.read()
        assert [packet.reason_code for packet in packets[:1]] == [0 if published else 0x86]
        assert session.closed != bool(published)


def test_without_a_desk_or_room_nobody_is_let_in() -> None:
    """0x88 where no shell computes, 0x89 beyond the bound; 3 in 3.1.1."""
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


def test_a_result_of_another_type_refuses() -> None:
    """A worker that failed says None."""
    hashed = Hashed({"u": b"p"})
    session = hashed.come("u", b"p")
    taken = hashed.desk.take()
    assert taken is not None
    hashed.edge.core.logins.done(*taken, None)
    hashed.edge.turn()
    assert code(session) == 0x88


def test_who_is_gone_leaves_its_desk() -> None:
    """Its hash is not computed; one that runs already is for nobody."""
    hashed = Hashed({"u": b"p"})
    waiting, running = hashed.come("u", b"p", "a"), hashed.come("u", b"p", "b")
    waiting.drop()
    taken = hashed.desk.take()
    assert taken is not None and hashed.desk.take() is None
    running.drop()
    hashed.edge.core.logins.done(*taken, True)
    hashed.edge.turn()
    assert not [message for message in hashed.edge.seen if isinstance(message, OpenSession)]


def test_the_time_for_connect_runs_on() -> None:
    """Who waits too long is closed without an answer."""
    hashed = Hashed({"u": b"p"})
    session = hashed.come("u", b"p")
    hashed.edge.now += 11
    hashed.edge.core.hot.sweep(hashed.edge.ns)
    hashed.edge.turn()
    assert session.closed and session.read() == [] and len(hashed.desk) == 0


def test_a_user_that_is_read_anew_while_its_hash_runs() -> None:
    """The password of before is judged by the file of now."""
    hashed = Hashed({"u": b"old"})
    session = hashed.come("u", b"old")
    hashed.step.replace(FileUsers({"u": record(b"new")}, SECRET))
    hashed.edge.core.logins.rights_taken()
    for _ in range(3):
        hashed.work()
    assert code(session) == 0x86


# --- what comes between the decision and CONNACK


def banned(kind: Any, value: str, until_utc: float = 0.0) -> PolicyView:
    view = PolicyView()
    view.bans.put(Ban(kind, value, until_utc))
    return view


@pytest.mark.parametrize(
    ("kind", "value"), [("user", "d"), ("client_id", "c"), ("certificate", "ab" * 32), ("user", "other")]
)
def test_a_ban_before_and_while_the_claim_is_committed(kind: str, value: str) -> None:
    """0x8A, and the session that was opened meanwhile is closed with its will discarded (A3)."""
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


def test_a_ban_that_is_over_refuses_nobody() -> None:
    """By this machine's clock."""
    for until, expected in ((START_UTC - 1, 0), (START_UTC + 1, 0x8A)):
        edge = Edge(steps=[CertificateStep(NameKind.CN)], read_certificate=lambda _: facts("d"))
        edge.chains.bans.view = banned("user", "d", until)
        session = edge.accept(CLOSED)
        session.connect("c")
        assert code(session) == expected


def test_rights_taken_while_the_claim_is_committed() -> None:
    """The chain runs anew before CONNACK: still right, let in; not any more, refused and the session closed (A3)."""
    for password, expected in ((b"p", 0), (b"q", 0x86)):
        hashed = Hashed({"u": b"p"})
        edge = hashed.edge
        edge.held.add(OpenSession)
        session = hashed.come("u", b"p")
        hashed.work()
        (request,) = edge.take(OpenSession)
        hashed.step.replace(FileUsers({"u": record(password)}, SECRET))
        edge.core.logins.rights_taken()
        answer = edge.reply(request)
        assert isinstance(answer, SessionOpened)
        edge.storage(answer)
        edge.turn()
        assert session.read() == [] and hashed.work() == 1
        assert code(session) == expected
        assert bool([each for each in edge.seen if isinstance(each, CloseSession)]) == bool(expected)


def test_who_goes_while_it_is_judged_anew_is_reported() -> None:
    """Its claim would be held by a connection that is gone."""
    hashed = Hashed({"u": b"p"})
    edge = hashed.edge
    edge.held.add(OpenSession)
    session = hashed.come("u", b"p")
    hashed.work()
    (request,) = edge.take(OpenSession)
    hashed.step.replace(FileUsers({"u": record(b"p")}, SECRET))
    edge.core.logins.rights_taken()
    answer = edge.reply(request)
    assert answer is not None
    edge.storage(answer)
    edge.turn()
    assert not [each for each in edge.seen if isinstance(each, CloseSession)] and len(hashed.desk) == 1
    session.drop()
    assert [each.clean for each in edge.seen if isinstance(each, CloseSession)] == [True]


def test_a_revoked_certificate_is_refused_by_every_step() -> None:
    """The policy's list counts, also where a password lets the client in."""

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


def test_a_principal_ends_by_the_clock() -> None:
    """NIST: protect. 0x87 in DISCONNECT; nothing before its time."""
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
def test_a_connection_ends_with_the_certificate_that_it_showed(step: AuthenticationStep | None, version: int) -> None:
    """NIST: protect. Whichever step let the client in, also none: 0x87 at its notAfter, by the clock; with a
    certificate that has ended nobody comes in again.
    """
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


def test_ends_of_those_who_left_are_forgotten() -> None:
    """A client that comes and goes with a token of a year must not fill the memory."""
    principal = Principal("u", "fixed", "c", expires_at_utc=START_UTC + 1e9)
    edge = Edge(steps=[Fixed(Allow(principal))])
    logins = edge.core.logins
    for number in range(300):
        session = edge.accept(CLOSED)
        session.connect(f"c{number}", username="u", password=b"p")
        session.drop()
    assert logins.ends <= 130


def test_clients_of_a_user_that_is_gone_are_closed() -> None:
    """In slices; others stay."""
    hashed = Hashed({"u": b"p", "v": b"p"})
    gone, stays = hashed.come("u", b"p", "a"), hashed.come("v", b"p", "b")
    hashed.work()
    assert [code(session) for session in (gone, stays)] == [0, 0]
    hashed.edge.core.logins.end_those(lambda client: client.principal is not None and client.principal.user == "u")
    hashed.edge.turn()
    assert [packet.reason_code for packet in gone.read()] == [0x87] and gone.closed and not stays.closed


def test_the_users_of_a_wrong_password_and_an_unknown_name_look_alike() -> None:
    """The same packets, whichever of the two is wrong."""
    hashed = Hashed({"u": b"p"})
    wrong, unknown = hashed.come("u", b"x", "a"), hashed.come("y", b"p", "b")
    hashed.work()
    assert [replace(packet) for packet in wrong.read()] == [replace(packet) for packet in unknown.read()]


@pytest.mark.parametrize(("kind", "value"), [("client_id", "c"), ("address", "192.0.2.1")])
def test_a_ban_that_comes_at_a_door_that_was_open(kind: Any, value: str) -> None:
    """A listener that judges nothing lets in at once; the ban comes before CONNACK, or is of somebody else."""
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
