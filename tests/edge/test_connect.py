"""CONNECT, CONNACK and DISCONNECT at one edge's core."""

import pytest

from access.identity.certificates import CertificateStep, NameKind
from edge.node.limits import ListenerPolicy
from mqtt.packets import Connect, Disconnect, Pingreq, Will
from mqtt.properties import PropertyId
from tests.edge.edge_harness import START, Edge, cluster_map, facts
from tests.edge.edge_limits import limits
from wire.messages.cluster_map import NodeEntry, NodeState
from wire.messages.map_pages import map_pages
from wire.messages.retained import ReadRetained, RetainedPage
from wire.messages.sessions import (
    CloseSession,
    OpenSession,
)


def test_connack_announces_node_limits() -> None:
    """Receive Maximum and Topic Alias Maximum always, Maximum Packet Size on request (section 3.2.2.3)."""
    edge = Edge(limits(announce_maximum_packet_size=False))
    assert edge.client().connack.properties == {PropertyId.TOPIC_ALIAS_MAXIMUM: 10, PropertyId.RECEIVE_MAXIMUM: 20}
    other = edge.client("d", properties={PropertyId.MAXIMUM_PACKET_SIZE: 5000})
    assert other.connack.properties[PropertyId.MAXIMUM_PACKET_SIZE] == 1024 * 1024 + 64 * 1024
    told = Edge().client()
    assert told.connack.properties[PropertyId.MAXIMUM_PACKET_SIZE] == 1024 * 1024 + 64 * 1024


def test_response_information_on_request() -> None:
    """Section 3.1.2.11.7: only on request, and only if it is a topic of that client alone."""
    edge = Edge(limits(response_information="responses/"))
    asking: dict[int, object] = {PropertyId.REQUEST_RESPONSE_INFORMATION: 1}
    assert edge.client("c", properties=asking).connack.properties[PropertyId.RESPONSE_INFORMATION] == "responses/c"
    assert PropertyId.RESPONSE_INFORMATION not in edge.client("d").connack.properties
    assert PropertyId.RESPONSE_INFORMATION not in edge.client("+", properties=asking).connack.properties


def test_empty_client_id_gets_an_assigned_one() -> None:
    """[MQTT-3.2.2-16], and 3.1.1 with Clean Session gets one silently."""
    edge = Edge()
    session = edge.client("")
    assert session.connack.properties[PropertyId.ASSIGNED_CLIENT_IDENTIFIER] == session.client.client_id == "auto-1"
    assert edge.client("", version=4).client.client_id == "auto-2"


@pytest.mark.parametrize(("version", "clean_start", "code"), [(3, True, 2), (4, False, 2)])
def test_empty_client_id_is_refused(version: int, clean_start: bool, code: int) -> None:
    """v3 [MQTT-3.1.3-8]; MQTT 3.1 never accepts one."""
    session = Edge().accept()
    session.connect("", version, clean_start=clean_start)
    (connack,) = session.read()
    assert (connack.reason_code, session.closed) == (code, True)


@pytest.mark.parametrize(
    ("connect", "reason_code"),
    [
        (Connect("c" * 300), 0x85),
        (Connect("c", will=Will("a/+")), 0x81),
        (Connect("c", will=Will("$SYS/x")), 0x87),
        (Connect("c", will=Will("a/" * 40)), 0x90),
        (Connect("c", properties={PropertyId.AUTHENTICATION_METHOD: "NONE"}), 0x8C),
    ],
)
def test_refused_connect_gets_connack_and_close(connect: Connect, reason_code: int) -> None:
    """A CONNACK has the reason, then the connection closes [MQTT-3.2.2-7]."""
    session = Edge().accept()
    session.send(connect)
    (connack,) = session.read()
    assert (connack.reason_code, session.closed) == (reason_code, True)


def test_first_packet_must_be_connect() -> None:
    """[MQTT-3.1.0-1]: no response."""
    session = Edge().accept()
    session.send(Pingreq())
    assert session.closed and session.read() == []


def test_second_connect_ends_the_connection() -> None:
    """[MQTT-3.1.0-2]."""
    session = Edge().client()
    session.send(Connect("c"))
    assert [packet.reason_code for packet in session.read()] == [0x82] and session.closed


def test_keep_alive_beyond_the_cap_is_announced() -> None:
    """Server Keep Alive [MQTT-3.2.2-21]; the client is closed after one and a half of it [MQTT-3.1.2-22]."""
    edge = Edge(limits(keep_alive_max_s=60))
    session = edge.client(keep_alive_s=0)
    assert session.connack.properties[PropertyId.SERVER_KEEP_ALIVE] == 60
    for seconds, closed in ((80, False), (15, True)):
        edge.turn(seconds)
        edge.core.hot.sweep(edge.ns)
        assert session.closed is closed
    assert [packet.reason_code for packet in session.read()] == [0x8D]


def test_connack_beyond_maximum_packet_size_closes() -> None:
    """[MQTT-3.1.2-24]: a larger packet must not be sent, and CONNACK is mandatory."""
    edge = Edge()
    session = edge.accept()
    session.connect(properties={PropertyId.MAXIMUM_PACKET_SIZE: 2})
    assert session.closed and session.read() == []
    assert not any(isinstance(message, OpenSession) for message in edge.seen)


def test_session_present_follows_the_partition() -> None:
    """[MQTT-3.2.2-2] [MQTT-3.2.2-3]: in all combinations of Clean Start and stored state."""
    edge = Edge()
    expiry: dict[int, object] = {PropertyId.SESSION_EXPIRY_INTERVAL: 100}
    present = []
    for clean_start in (False, False, True, False):
        session = edge.client("d", properties=expiry, clean_start=clean_start)
        present.append(session.connack.session_present)
        session.send(Disconnect())
    assert present == [False, True, False, True]


def test_session_expiry_is_capped_and_announced() -> None:
    """Section 3.2.2.3.2: the interval in use is in CONNACK when it differs."""
    edge = Edge(limits(session_expiry_max_s=50))
    session = edge.client(properties={PropertyId.SESSION_EXPIRY_INTERVAL: 100})
    assert session.connack.properties[PropertyId.SESSION_EXPIRY_INTERVAL] == 50
    assert next(m for m in edge.seen if isinstance(m, OpenSession)).expiry_s == 50


def test_edge_follows_a_restarted_router() -> None:
    """Simulation seed 3034: the end of a retired peer's link was not reported, and the map was never updated again."""
    edge = Edge()
    assert edge.core.lease.following == "r0"
    moved = cluster_map(2)
    moved.nodes["r0"] = NodeEntry("r0", "router", 2, "r0:1", state=NodeState.ACTIVE)
    edge.core.peers.know(cluster_map())
    edge.router(*map_pages(moved))
    assert edge.core.lease.following == ""


def test_expiry_can_change_at_disconnect_but_not_from_zero() -> None:
    """Section 3.14.2.2.2."""
    edge = Edge()
    change = Disconnect(0, {PropertyId.SESSION_EXPIRY_INTERVAL: 9})
    durable = edge.client("d", properties={PropertyId.SESSION_EXPIRY_INTERVAL: 100})
    durable.send(change)
    assert [m.expiry_s for m in edge.seen if isinstance(m, CloseSession)] == [9]
    ephemeral = edge.client("e")
    ephemeral.send(change)
    assert [packet.reason_code for packet in ephemeral.read()] == [0x82]


def test_connect_waits_for_a_lease() -> None:
    """An edge without a lease sends no claims; the client waits."""
    edge = Edge()
    edge.core.lease.lease_until = START
    edge.turn()
    session = edge.accept()
    session.connect()
    assert session.read() == [] and not any(isinstance(m, OpenSession) for m in edge.seen)
    edge.renew()
    assert [packet.reason_code for packet in session.read()] == [0]


def test_long_time_without_lease_closes_clients() -> None:
    """After fence_close_s clients get 0x89: DISCONNECT has no 0x88 (table 3-13)."""
    edge = Edge(limits(fence_close_s=10.0))
    session = edge.client()
    edge.core.lease.lease_until = edge.now
    edge.turn(1.0)
    edge.turn(8.9)
    assert not session.closed
    edge.turn(0.1)
    assert session.closed
    assert [packet.reason_code for packet in session.read()] == [0x89]


def test_anonymous_clients_are_refused_if_not_allowed() -> None:
    """0x87 without a password, because a name alone proves no identity; 0x86 with one; 5 and 4 in 3.1.1."""
    edge = Edge()
    closed = ListenerPolicy("tls", False)
    codes = []
    for version in (5, 4):
        for given in ({}, {"username": "u"}, {"username": "u", "password": b"p"}):
            session = edge.accept(closed)
            session.connect(version=version, **given)
            codes.append(session.read()[0].reason_code)
    assert codes == [0x87, 0x87, 0x86, 5, 5, 4]


def test_verified_certificate_is_the_identity() -> None:
    """It precedes the user name, and suffices without anonymous access."""
    edge = Edge(steps=[CertificateStep(NameKind.CN)], read_certificate=lambda _: facts("device-7"))
    session = edge.accept(ListenerPolicy("tls", False))
    session.connect(username="somebody-else")
    assert session.read()[0].reason_code == 0 and session.client.owner == "device-7"


def test_connect_rate_and_number_are_limited() -> None:
    """Beyond connect_rate_max a CONNECT waits, then gets 0x89, as beyond connections_max; 3 in 3.1.1."""
    edge = Edge(limits(connect_rate_max=2.0))
    sessions = [edge.accept() for _ in range(4)]
    for number, session in enumerate(sessions):
        session.connect(f"c{number}")
    assert [len(session.read()) for session in sessions] == [1, 1, 0, 0]
    edge.turn(1.1)
    assert [answer.reason_code for session in sessions[2:] for answer in session.read()] == [0, 0]
    slow = Edge(limits(connect_rate_max=1e-3))
    late = [slow.accept() for _ in range(3)]
    for number, session in enumerate(late):
        session.connect(f"c{number}")
    slow.turn(5.1)
    assert late[2].read()[0].reason_code == 0x89 and slow.core.counts["refused_connect_rate"] == 1
    full = Edge(limits(connections_max=2))
    for name in ("a", "b"):
        full.client(name)
    session = full.accept()
    session.connect("c", version=4)
    assert session.read()[0].reason_code == 3 and full.core.counts["refused_connections"] == 1


def test_requests_beyond_the_bound_are_refused() -> None:
    """0x89 when storage does not respond and too many requests are pending."""
    edge = Edge(limits(requests_max=2))
    edge.held = {OpenSession}
    sessions = [edge.accept() for _ in range(3)]
    for number, session in enumerate(sessions):
        session.connect(f"c{number}")
    assert [len(session.read()) for session in sessions[:2]] == [0, 0]
    assert sessions[2].read() == [] or sessions[2].closed


def test_slow_connect_is_closed_despite_single_bytes() -> None:
    """connect_timeout_s counts from accept."""
    edge = Edge(limits(connect_timeout_s=10.0))
    session = edge.accept()
    for byte in b"\x10\x20\x00\x04MQTT":
        session.send(bytes([byte]))
        edge.turn(1.4)
        edge.core.hot.sweep(edge.ns)
    assert session.closed and session.read() == []


def test_connect_packet_has_its_own_timeout() -> None:
    """Independent of the login time; late clients are counted."""
    edge = Edge(limits(connect_timeout_s=10.0, connect_packet_timeout_s=5.0))
    late, silent, honest = edge.accept(), edge.accept(), edge.accept()
    late.send(b"\x10\x20\x00\x04MQTT")
    edge.held = {OpenSession}
    edge.turn(4.5)
    honest.send(Connect("honest", properties={PropertyId.SESSION_EXPIRY_INTERVAL: 100}))
    edge.turn(1.0)
    edge.core.hot.sweep(edge.ns)
    assert (late.closed, silent.closed, honest.closed) == (True, True, False)
    assert edge.core.node.counts["late_connects"] == 2
    edge.turn(5.0)
    edge.core.hot.sweep(edge.ns)
    assert honest.closed


def test_declared_length_before_connect_is_bounded() -> None:
    """256 MiB are refused at their fixed header: no byte is buffered."""
    session = Edge().accept()
    session.send(b"\x10\xff\xff\xff\x7f")
    assert session.closed
    bounded = Edge().accept()
    bounded.send(b"\x10\xff\xff\x03")  # 65 535 and its header are more than 64 KiB
    assert bounded.closed


def test_ready_when_every_partition_answers() -> None:
    """Listeners open when the first CONNECT would be served, not when links are connected."""
    edge = Edge()
    edge.core.follower.storage_linked = lambda: True  # type: ignore[method-assign]
    edge.held = {ReadRetained}
    assert not edge.core.ready
    questions = edge.take(ReadRetained)
    assert [question.partition for question in questions] == [0, 1, 2, 3]
    for question in questions:
        assert not edge.core.ready
        edge.storage(RetainedPage(question.request, []))
    assert edge.core.ready


def test_unsupported_codes_become_unspecified() -> None:
    """[MQTT-3.2.2-8] [MQTT-3.14.2-1]: 0x80 replaces codes that CONNACK or DISCONNECT does not have."""
    edge = Edge()
    session, waiting = edge.client(), edge.accept()
    edge.core.clients.disconnect(session.client, 0x88)
    waiting.client.version = 5
    edge.core.clients.refuse(waiting.client, 0x93)
    assert [packet.reason_code for end in (session, waiting) for packet in end.read()] == [0x80, 0x80]


def test_packets_in_the_connect_bytes_wait() -> None:
    """Packets after CONNECT in the same bytes wait for CONNACK and keep their order."""
    edge = Edge()
    session = edge.accept()
    from mqtt.codec import encode_packet

    session.send(encode_packet(Connect("c"), 5) + encode_packet(Pingreq(), 5))
    assert [type(packet).__name__ for packet in session.read()] == ["Connack", "Pingresp"]
