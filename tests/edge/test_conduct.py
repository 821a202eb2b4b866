"""Temporary refusals by the history of clients and addresses."""

from typing import Any

import pytest

from access.identity.scram import Scram, make_user
from access.identity.scram_step import ScramStep
from access.operators.audit_chain import AuditRecord
from conf.settings import ListenerSettings
from edge.listeners.admission_control import AdmissionControl
from edge.node.limits import ListenerPolicy
from mqtt import packets
from mqtt.packets import Auth, Connect
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge, Session
from tests.edge.edge_limits import limits
from tests.edge.rights.ruled import Vouched, principal
from tests.edge.session_answers import publishes
from tests.edge.test_scram import CLIENT_FIRST, SALT, SERVER_NONCE
from wire.messages.routes import Resolve
from wire.messages.sessions import KickSession, OpenSession, SessionOpened
from wire.messages.wills import FireWill, SessionWill, WillFired

CLOSED = ListenerPolicy("tls", False)
INTAKE = AdmissionControl(ListenerSettings(name="plain", port=0, tls=False), ["127.0.0.0/8"])
OWN, STRANGE = "192.0.2.1", "198.51.100.9"


def come(edge: Edge, address: str, policy: ListenerPolicy | None = None) -> Session:
    """Accept a connection of an address."""
    session = edge.accept(policy)
    session.client.seat = INTAKE.enter(address)
    return session


def code(edge: Edge, address: str, client_id: str = "c", policy: ListenerPolicy | None = None, **more: Any) -> int:
    session = come(edge, address, policy)
    session.connect(client_id, **more)
    (connack,) = session.read()
    return int(connack.reason_code)


def come_and_go(edge: Edge, address: str, client_id: str = "c") -> int:
    session = come(edge, address)
    session.connect(client_id)
    (connack,) = session.read()
    session.drop()
    return int(connack.reason_code)


# --- failed logins


def test_ten_wrong_passwords_block_the_address_for_five_minutes() -> None:
    """The eleventh CONNECT is refused before its credentials are checked; others are unaffected."""
    edge = Edge()
    codes = [code(edge, STRANGE, username="u", password=b"p", policy=CLOSED) for _ in range(12)]
    assert codes == [0x86] * 10 + [0x9F] * 2
    assert edge.core.counts["refused_failed_logins"] == 2
    assert code(edge, STRANGE) == 0x9F  # also without a credential check
    assert code(edge, OWN, username="u", password=b"p", policy=CLOSED) == 0x86  # the user is not locked out
    assert code(edge, OWN) == 0
    edge.turn(299.0)
    assert code(edge, STRANGE) == 0x9F
    edge.turn(1.1)
    assert code(edge, STRANGE) == 0


def test_blocked_address_is_audited() -> None:
    """At the failure that blocks it: behind TLS its CONNECTs are no longer read."""
    edge = Edge()
    noted: list[AuditRecord] = []
    edge.core.node.audit = noted.append
    for _ in range(10):
        code(edge, STRANGE, username="u", password=b"p", policy=CLOSED)
    assert (noted[-1].kind, noted[-1].outcome, noted[-1].address) == ("login", "refused", STRANGE)
    assert noted[-1].reason == "0x9F failed logins" and len(noted) == 11


def test_blocked_address_is_closed_before_its_handshake() -> None:
    """A handshake is the most expensive step; without TLS the client gets the reason."""
    edge = Edge()
    for _ in range(10):
        code(edge, STRANGE, username="u", password=b"p", policy=CLOSED)
    refusal = edge.core.conduct.refusal
    assert refusal(INTAKE, STRANGE, secure=True) == "refused_failed_logins"
    for address, secure in ((STRANGE, False), (OWN, True), ("127.0.0.1", True)):
        assert not refusal(INTAKE, address, secure=secure)


def test_wrong_scram_proof_is_a_failed_login_unknown_method_is_not() -> None:
    method: dict[int, object] = {PropertyId.AUTHENTICATION_METHOD: "SCRAM-SHA-256"}
    scram = Scram({"user": make_user("pencil", SALT)}, lambda: SERVER_NONCE, b"secret")
    edge = Edge(steps=[ScramStep(scram, allow_plain=True)])
    codes = []
    for _ in range(11):
        session = come(edge, STRANGE, CLOSED)
        session.send(Connect("c", properties=method | {PropertyId.AUTHENTICATION_DATA: CLIENT_FIRST}))
        first = session.read()[0]
        if first.reason_code == 0x18:
            session.send(Auth(0x18, method | {PropertyId.AUTHENTICATION_DATA: b"c=biws,r=x,p=AAAA"}))
            first = session.read()[0]
        codes.append(first.reason_code)
    assert codes == [0x87] * 10 + [0x9F]
    other: dict[int, object] = {PropertyId.AUTHENTICATION_METHOD: "OTHER"}
    assert [code(edge, OWN, properties=other) for _ in range(20)] == [0x8C] * 20


def test_connects_beyond_the_rate_are_queued_by_address() -> None:
    """An address without queued CONNECTs is next, regardless of the others."""
    edge = Edge(limits(connect_rate_max=2.0))
    flood = [come(edge, STRANGE) for _ in range(9)]
    newcomer = come(edge, OWN)
    for number, session in enumerate((*flood, newcomer)):
        session.connect(f"c{number}")
    assert not newcomer.read() and [len(session.read()) for session in flood] == [1, 1] + [0] * 7
    edge.turn(1.1)
    assert newcomer.read()[0].reason_code == 0 and sum(len(session.read()) for session in flood) <= 1


def test_only_wrong_credentials_are_failed_logins() -> None:
    """Missing credentials and a busy edge do not count."""
    edge = Edge()
    assert [code(edge, STRANGE, policy=CLOSED) for _ in range(20)] == [0x87] * 20
    busy = Edge(limits(connections_max=1))
    busy.client("first")
    assert [code(busy, STRANGE) for _ in range(20)] == [0x89] * 20


@pytest.mark.parametrize("address", ["127.0.0.1", ""])
def test_trusted_and_unknown_addresses_are_not_counted(address: str) -> None:
    """Many clients share such an address."""
    edge = Edge()
    assert [code(edge, address, username="u", password=b"p", policy=CLOSED) for _ in range(30)] == [0x86] * 30
    assert [come_and_go(edge, address) for _ in range(30)] == [0] * 30


def test_limit_refusals_are_audited() -> None:
    """A used-up quota, too many clients or sessions of a user, a will of the broker's topics."""
    limits_of_anna = {"daily_bytes_max": 1_000, "connections_user_max": 1}
    vouched = Vouched()
    edge = Edge(steps=[vouched])
    noted: list[AuditRecord] = []
    edge.core.node.audit = noted.append

    def anna(client_id: str, **more: Any) -> Session:
        vouched.known["anna"] = principal("anna", client_id, limits=limits_of_anna)
        session = come(edge, OWN)
        session.connect(client_id, username="anna", password=b"p", **more)
        return session

    first, second = anna("a"), anna("b")
    assert [one.read()[0].reason_code for one in (first, second)] == [0, 0x97]
    first.publish("t", bytes(1_000), qos=1, identifier=1)
    assert [packet.reason_code for packet in first.read()][-1] == 0x97
    assert anna("a").read()[0].reason_code == 0x97
    edge.turn(86_400.0)
    edge.renew()
    edge.held = {OpenSession}
    full = anna("a", properties={PropertyId.SESSION_EXPIRY_INTERVAL: 60})
    (request,) = edge.take(OpenSession)
    edge.storage(SessionOpened(request.request, request.partition, 1, 0x97))
    assert full.read()[0].reason_code == 0x97
    assert code(edge, STRANGE, will=packets.Will("$SYS/x")) == 0x87 and edge.core.counts["refused_will"] == 1
    assert [(one.actor, one.client_id, one.reason) for one in noted] == [
        ("anna", "b", "0x97 user connections"),
        ("anna", "a", "0x97 daily bytes"),
        ("anna", "a", "0x97 daily bytes"),
        ("anna", "a", "0x97 too many stored sessions"),
        ("", "c", "0x87 a will of a topic of the broker"),
    ]


# --- flapping


def test_fifteen_ends_in_a_minute_block_the_pair() -> None:
    """The same client ID from another address connects, and another one from the same address."""
    edge = Edge()
    assert [come_and_go(edge, STRANGE, "owner") for _ in range(17)] == [0] * 15 + [0x9F] * 2
    assert edge.core.counts["refused_flapping"] == 2
    assert come_and_go(edge, OWN, "owner") == 0 and come_and_go(edge, STRANGE, "other") == 0
    edge.turn(300.1)
    assert come_and_go(edge, STRANGE, "owner") == 0


def test_connections_without_session_are_not_flapping() -> None:
    """A refused CONNECT has its own bound; a client without an ID gets another one each time."""
    edge = Edge(limits(failed_logins_max=0))
    assert [code(edge, STRANGE, username="u", password=b"p", policy=CLOSED) for _ in range(30)] == [0x86] * 30
    assert code(edge, STRANGE) == 0
    assert [come_and_go(edge, STRANGE, "") for _ in range(30)] == [0] * 30


def test_zero_bounds_refuse_no_client() -> None:
    edge = Edge(limits(failed_logins_max=0, flapping_ends_max=0))
    assert [code(edge, STRANGE, username="u", password=b"p", policy=CLOSED) for _ in range(30)] == [0x86] * 30
    assert [come_and_go(edge, STRANGE) for _ in range(30)] == [0] * 30


# --- takeovers


def take_over(edge: Edge, client_id: str, older: Session | None, request: int = 1) -> tuple[int, Session]:
    """Connect; if accepted, the partition ends the older connection."""
    session = come(edge, OWN)
    session.connect(client_id)
    (connack,) = session.read()
    if connack.reason_code == 0 and older is not None:
        edge.storage(KickSession(request, client_id, older.client.number, older.client.owner_epoch))
        edge.turn()
    return int(connack.reason_code), session


def test_takeovers_of_one_client_id_are_limited() -> None:
    """At most ten in the first minute; the older connection stays while they are refused."""
    edge = Edge(limits(takeovers_max=5, flapping_ends_max=0))
    _, holder = take_over(edge, "loop", None)
    taken, refused = 0, 0
    for _ in range(590):
        edge.turn(0.1)
        reason_code, session = take_over(edge, "loop", holder)
        if reason_code == 0:
            taken, holder = taken + 1, session
        else:
            refused += 1
            assert reason_code == 0x9F and not holder.closed
    assert 5 < taken <= 10 and taken + refused == 590
    assert edge.core.counts["refused_takeovers"] == refused
    assert take_over(edge, "other", None)[0] == 0


def test_unauthenticated_clients_use_up_no_takeovers() -> None:
    """A refused client, or one that does not own the session, takes over no connection."""
    edge = Edge(limits(takeovers_max=5, failed_logins_max=0))
    _, holder = take_over(edge, "c", None)
    assert [code(edge, STRANGE, username="u", password=b"p", policy=CLOSED) for _ in range(30)] == [0x86] * 30
    edge.held = {OpenSession}
    for _ in range(30):
        session = come(edge, STRANGE)
        session.connect("c")
        (request,) = edge.take(OpenSession)
        edge.storage(SessionOpened(request.request, request.partition, 1, 0x87))
        assert session.read()[0].reason_code == 0x87
    edge.held = set()
    assert take_over(edge, "c", holder)[0] == 0


def test_disconnect_is_no_takeover() -> None:
    """A device that reconnects has no competitor."""
    edge = Edge(limits(takeovers_max=1, flapping_ends_max=0))
    assert [come_and_go(edge, OWN) for _ in range(20)] == [0] * 20


# --- places


def test_each_connection_frees_its_slot_once() -> None:
    """After an open session, a refusal, silence, or malformed bytes."""
    edge = Edge()
    before = len(INTAKE)
    come_and_go(edge, OWN)
    code(edge, OWN, policy=CLOSED)
    garbage = come(edge, OWN)
    garbage.send(b"\xff\xff")
    silent = come(edge, OWN)
    silent.drop()
    for client in edge.core.clients.all():
        edge.core.hot.end_of_file(client.conn)
    edge.turn()
    assert len(INTAKE) == before and not edge.core.clients.all()


# --- wills


def test_wills_are_rate_limited_without_loss() -> None:
    """A burst of two seconds; wills above the rate wait here without another order."""
    edge = Edge(limits(will_rate_max=10.0))
    session = edge.client("s")
    session.subscribe("w")
    session.read()
    edge.held = {WillFired}
    for number in range(1, 101):
        edge.storage(FireWill(number, 1, 1, number, SessionWill("w", b"%d" % number)))
    edge.turn()
    seen, answered, seconds = [int(copy.payload) for copy in publishes(session)], len(edge.take(WillFired)), 0
    assert len(seen) == answered == 20
    while len(seen) < 100 and seconds < 20:
        edge.turn(1.0)
        seen += [int(copy.payload) for copy in publishes(session)]
        answered += len(edge.take(WillFired))
        seconds += 1
    assert seen == list(range(1, 101)) and answered == 100 and seconds in (8, 9)
    assert edge.core.counts["wills_deferred"] == 80


def test_repeated_order_of_pending_will_is_free() -> None:
    """A slow destination delays no other will."""
    edge = Edge(limits(will_rate_max=1.0))
    edge.held = {WillFired, Resolve}
    for _ in range(10):
        edge.storage(FireWill(1, 1, 1, 1, SessionWill("w", b"")))
    edge.storage(FireWill(2, 1, 1, 2, SessionWill("w", b"")))
    assert "wills_deferred" not in edge.core.counts
    edge.storage(FireWill(3, 1, 1, 3, SessionWill("w", b"")))
    assert edge.core.counts["wills_deferred"] == 1
