"""Enhanced authentication at one edge's core: before CONNACK, re-authentication, protocol errors."""

import pytest

from access.identity.scram import Scram, make_user
from access.identity.scram_step import ScramStep
from edge.node.limits import ListenerPolicy
from mqtt.packets import Auth, Connack, Connect, Disconnect
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge, Session
from tests.edge.test_scram import CLIENT_FINAL, CLIENT_FIRST, SALT, SERVER_NONCE

METHOD: dict[int, object] = {PropertyId.AUTHENTICATION_METHOD: "SCRAM-SHA-256"}


def scram_edge() -> Edge:
    method = Scram({"user": make_user("pencil", SALT)}, lambda: SERVER_NONCE, b"secret")
    return Edge(steps=[ScramStep(method, allow_plain=True)])


def authenticate(edge: Edge) -> Session:
    session = edge.accept(ListenerPolicy("tls", False))
    session.send(Connect("c", properties=METHOD | {PropertyId.AUTHENTICATION_DATA: CLIENT_FIRST}))
    (auth,) = session.read()
    assert auth.reason_code == 0x18 and auth.properties[PropertyId.AUTHENTICATION_METHOD] == "SCRAM-SHA-256"
    session.send(Auth(0x18, METHOD | {PropertyId.AUTHENTICATION_DATA: CLIENT_FINAL}))
    return session


def test_scram_before_connack() -> None:
    """CONNACK has the method and the server's proof [MQTT-4.12.0-4]; the proved user is the client's identity."""
    session = authenticate(scram_edge())
    (connack,) = session.read()
    assert isinstance(connack, Connack) and connack.reason_code == 0
    assert connack.properties[PropertyId.AUTHENTICATION_DATA].startswith(b"v=")  # type: ignore[attr-defined]
    assert session.client.owner == "user"


def test_reauthentication_exchange() -> None:
    """AUTH 0x19 starts another exchange, AUTH 0x00 ends it; a wrong proof ends the connection [MQTT-4.12.1-2]."""
    for proof, ends in ((CLIENT_FINAL, False), (b"c=biws,r=x,p=AAAA", True)):
        edge = scram_edge()
        session = authenticate(edge)
        session.read()
        session.send(Auth(0x19, METHOD | {PropertyId.AUTHENTICATION_DATA: CLIENT_FIRST}))
        assert [packet.reason_code for packet in session.read()] == [0x18]
        session.send(Auth(0x18, METHOD | {PropertyId.AUTHENTICATION_DATA: proof}))
        (answer,) = session.read()
        assert (type(answer), answer.reason_code) == ((Disconnect, 0x87) if ends else (Auth, 0))


@pytest.mark.parametrize(
    "packet",
    [
        Auth(0x18, METHOD),  # no exchange is in progress
        Auth(0x19, {PropertyId.AUTHENTICATION_METHOD: "OTHER"}),  # [MQTT-4.12.0-5]
        Auth(0x00, METHOD),  # only the server sends success
    ],
)
def test_unexpected_auth_is_a_protocol_error(packet: Auth) -> None:
    session = authenticate(scram_edge())
    session.read()
    session.send(packet)
    assert session.closed and session.read()[0].reason_code >= 0x80


def test_packets_during_the_exchange() -> None:
    """Only AUTH and DISCONNECT are allowed [MQTT-3.1.2-30]; without a method AUTH is an error [MQTT-4.12.0-6]."""
    edge = scram_edge()
    session = edge.accept()
    session.send(Connect("c", properties=METHOD | {PropertyId.AUTHENTICATION_DATA: CLIENT_FIRST}))
    session.read()
    session.subscribe("a")
    assert session.closed
    plain = edge.client("d")
    plain.send(Auth(0x19, METHOD))
    assert plain.closed
