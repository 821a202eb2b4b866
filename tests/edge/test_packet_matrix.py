"""Each packet type in each state of a connection: unexpected and server-only packets reach no handler.

The states are those of an MQTT 5 connection; each cell says whether the connection stays open.
"""

from collections.abc import Callable

import pytest

from edge.node.limits import EdgeLimits
from mqtt.packets import Connect
from mqtt.properties import PropertyId
from tests.clients import packets
from tests.clients.packets import text
from tests.edge.edge_harness import Edge, Session
from tests.edge.test_authentication import METHOD, scram_edge
from tests.edge.test_scram import CLIENT_FIRST
from wire.messages.sessions import OpenSession

PACKETS = {
    "reserved": b"\x00\x00",
    "CONNECT": packets.connect(b"again", 5),
    "CONNACK": b"\x20\x03\x00\x00\x00",
    "PUBLISH": packets.publish(b"t", b"x", 1, 7, version=5),
    "PUBACK": packets.ack(0x40, 7),
    "PUBREC": packets.ack(0x50, 7),
    "PUBREL": packets.ack(0x62, 7),
    "PUBCOMP": packets.ack(0x70, 7),
    "SUBSCRIBE": packets.subscribe(b"t", 0, 5),
    "SUBACK": b"\x90\x04\x00\x01\x00\x00",
    "UNSUBSCRIBE": packets.unsubscribe([b"t"], 5),
    "UNSUBACK": b"\xb0\x04\x00\x01\x00\x00",
    "PINGREQ": packets.PINGREQ,
    "PINGRESP": b"\xd0\x00",
    "DISCONNECT": packets.DISCONNECT,
    "AUTH": packets.packet(0xF0, b"\x18\x08\x15" + text(b"OTHER")),
}
# On an open connection: expected responses, [] for none; other types end it with a reason code.
ANSWERS = {
    "PUBLISH": ["Puback"],
    "PUBACK": [],
    "PUBREC": ["Pubrel"],
    "PUBREL": ["Pubcomp"],
    "PUBCOMP": [],
    "SUBSCRIBE": ["Suback"],
    "UNSUBSCRIBE": ["Unsuback"],
    "PINGREQ": ["Pingresp"],
}
FENCED = ANSWERS | {"PUBLISH": [], "SUBSCRIBE": [], "UNSUBSCRIBE": []}  # answered with the next lease


def new() -> Session:
    return Edge().accept()


def authenticating() -> Session:
    session = scram_edge().accept()
    session.send(Connect("c", properties=METHOD | {PropertyId.AUTHENTICATION_DATA: CLIENT_FIRST}))
    session.read()
    return session


def opening() -> Session:
    edge = Edge()
    edge.held.add(OpenSession)
    session = edge.accept()
    session.connect("c")
    assert session.read() == []
    return session


def open_() -> Session:
    return Edge().client("c")


def fenced() -> Session:
    edge = Edge(EdgeLimits(sys_interval_s=0, fence_close_s=100.0))
    session = edge.client("c")
    edge.turn(1_001.0)
    return session


def left() -> Session:
    session = Edge().client("c")
    session.send(packets.DISCONNECT)
    return session


STATES: dict[str, Callable[[], Session]] = {
    "new": new, "authenticating": authenticating, "opening": opening, "open": open_, "fenced": fenced, "left": left
}  # fmt: skip


def judge(session: Session, kind: str, answers: dict[str, list[str]]) -> None:
    """Check that an open connection has these responses, or ends with a reason code above success."""
    read = session.read()
    if kind in answers:
        assert [type(packet).__name__ for packet in read] == answers[kind] and not session.closed
    else:
        assert session.closed
        assert kind == "DISCONNECT" or (len(read) == 1 and read[0].reason_code >= 0x80)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", PACKETS)
def test_packet_in_state(state: str, kind: str) -> None:
    """16 types in 6 states."""
    session = STATES[state]()
    session.send(PACKETS[kind])
    if state in ("open", "fenced"):
        judge(session, kind, ANSWERS if state == "open" else FENCED)
    elif state == "opening":  # kept until CONNACK was sent
        assert session.read() == [] and not session.closed
        session.edge.held.clear()
        session.edge.turn()
        ends = kind == "DISCONNECT"  # of a client that did not wait: it is not admitted
        output = session.edge.core.hot.take_output(session.client.conn)
        assert ends or (output[0] == 0x20 and output[3] == 0)
        assert session.closed is (kind not in ANSWERS)
    elif state == "new" and kind == "CONNECT":
        assert session.read()[0].reason_code == 0
    else:
        answers = session.read()
        assert session.closed
        assert [answer.reason_code >= 0x80 for answer in answers] == [True] * (state == "authenticating")
