"""CONNECT, CONNACK, DISCONNECT, takeover and what is reported to the client ID's partition."""

from typing import Any

import pytest

from edge.node.limits import EdgeLimits, ListenerPolicy
from mqtt.packets import Connect, Disconnect, Pingreq, Will
from mqtt.properties import PropertyId
from tests.edge.edge_harness import START, Edge, cluster_map
from wire.messages.cluster_map import NodeEntry, NodeState
from wire.messages.map_pages import map_pages
from wire.messages.nodes import HeartbeatReply, Moved
from wire.messages.retained import ReadRetained, RetainedPage
from wire.messages.sessions import (
    Claims,
    CloseSession,
    KickSession,
    OpenSession,
    PollClaims,
    SessionClosed,
    SessionKicked,
    SessionOpened,
)


def limits(**values: Any) -> EdgeLimits:
    return EdgeLimits(sys_interval_s=0, **values)


def test_connack_announces_the_limits() -> None:
    """Receive Maximum and Topic Alias Maximum always, Maximum Packet Size to who speaks of it (section 3.2.2.3)."""
    edge = Edge(limits(announce_maximum_packet_size=False))
    assert edge.client().connack.properties == {PropertyId.TOPIC_ALIAS_MAXIMUM: 10, PropertyId.RECEIVE_MAXIMUM: 20}
    other = edge.client("d", properties={PropertyId.MAXIMUM_PACKET_SIZE: 5000})
    assert other.connack.properties[PropertyId.MAXIMUM_PACKET_SIZE] == 1024 * 1024 + 64 * 1024
    told = Edge().client()
    assert told.connack.properties[PropertyId.MAXIMUM_PACKET_SIZE] == 1024 * 1024 + 64 * 1024


def test_response_information_is_told_on_request() -> None:
    """Section 3.1.2.11.7: only to who asks for it, and only where it is a topic of that client alone."""
    edge = Edge(limits(response_information="responses/"))
    asking: dict[int, object] = {PropertyId.REQUEST_RESPONSE_INFORMATION: 1}
    assert edge.client("c", properties=asking).connack.properties[PropertyId.RESPONSE_INFORMATION] == "responses/c"
    assert PropertyId.RESPONSE_INFORMATION not in edge.client("d").connack.properties
    assert PropertyId.RESPONSE_INFORMATION not in edge.client("+", properties=asking).connack.properties


def test_claims_of_a_storm_go_together() -> None:
    """The first CONNECT is claimed at once, those of the next moment share a round; no order is changed."""
    edge = Edge(limits(claim_gap_s=0.003))
    edge.client("first")
    sessions = [edge.accept() for _ in range(3)]
    for number, session in enumerate(sessions):
        session.connect(f"c{number}")
    assert [m.client_id for m in edge.seen if isinstance(m, OpenSession)] == ["first"]
    assert edge.core.next_deadline() <= edge.now + 0.003
    edge.round(0.0031)
    assert [m.client_id for m in edge.seen if isinstance(m, OpenSession)] == ["first", "c0", "c1", "c2"]
    assert all(session.read()[0].reason_code == 0 for session in sessions)


def test_claims_wait_longer_where_few_come_together() -> None:
    """A storm that handshakes thin out shares rounds too; who connects alone later waits no longer than at first."""
    edge = Edge(limits(claim_gap_s=0.003))
    edge.client("first")
    waits_ms = []
    for moment, together in enumerate((2, 2, 2, 17, 1, 1)):
        sessions = [edge.accept() for _ in range(together)]
        for number, session in enumerate(sessions):
            session.connect(f"c{moment}-{number}")
        waits_ms.append(round(1000 * (edge.core.next_deadline() - edge.now)))
        edge.round(waits_ms[-1] / 1000 + 0.0001)
        assert all(session.read()[0].reason_code == 0 for session in sessions)
    assert waits_ms == [3, 6, 12, 12, 6, 3]


def test_client_without_identifier_is_told_its_own() -> None:
    """[MQTT-3.2.2-16], and 3.1.1 with Clean Session gets one silently."""
    edge = Edge()
    session = edge.client("")
    assert session.connack.properties[PropertyId.ASSIGNED_CLIENT_IDENTIFIER] == session.client.client_id == "auto-1"
    assert edge.client("", version=4).client.client_id == "auto-2"


@pytest.mark.parametrize(("version", "clean_start", "code"), [(3, True, 2), (4, False, 2)])
def test_empty_identifier_that_is_refused(version: int, clean_start: bool, code: int) -> None:
    """v3 [MQTT-3.1.3-8]; MQTT 3.1 never takes one."""
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
def test_connect_that_is_refused(connect: Connect, reason_code: int) -> None:
    """A CONNACK names the reason, then the connection closes [MQTT-3.2.2-7]."""
    session = Edge().accept()
    session.send(connect)
    (connack,) = session.read()
    assert (connack.reason_code, session.closed) == (reason_code, True)


def test_first_packet_must_be_connect() -> None:
    """[MQTT-3.1.0-1]: nothing is answered."""
    session = Edge().accept()
    session.send(Pingreq())
    assert session.closed and session.read() == []


def test_second_connect_ends_the_connection() -> None:
    """[MQTT-3.1.0-2]."""
    session = Edge().client()
    session.send(Connect("c"))
    assert [packet.reason_code for packet in session.read()] == [0x82] and session.closed


def test_keep_alive_beyond_the_cap_is_told() -> None:
    """Server Keep Alive [MQTT-3.2.2-21]; the client is cut after one and a half of it [MQTT-3.1.2-22]."""
    edge = Edge(limits(keep_alive_max_s=60))
    session = edge.client(keep_alive_s=0)
    assert session.connack.properties[PropertyId.SERVER_KEEP_ALIVE] == 60
    for seconds, closed in ((80, False), (15, True)):
        edge.round(seconds)
        edge.core.hot.sweep(edge.ns)
        assert session.closed is closed
    assert [packet.reason_code for packet in session.read()] == [0x8D]


def test_client_that_takes_no_packet_as_large_as_connack_is_closed() -> None:
    """[MQTT-3.1.2-24]: nothing larger may be sent, and CONNACK cannot be left out."""
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


def test_session_expiry_is_capped_and_told() -> None:
    """Section 3.2.2.3.2: the interval in use is in CONNACK when it differs."""
    edge = Edge(limits(session_expiry_max_s=50))
    session = edge.client(properties={PropertyId.SESSION_EXPIRY_INTERVAL: 100})
    assert session.connack.properties[PropertyId.SESSION_EXPIRY_INTERVAL] == 50
    assert next(m for m in edge.seen if isinstance(m, OpenSession)).expiry_s == 50


def test_will_is_claimed_with_its_delay_and_expiry_taken_out() -> None:
    """Will Delay and Message Expiry are the partition's business, other properties travel as they are."""
    edge = Edge()
    properties: dict[int, object] = {
        PropertyId.WILL_DELAY_INTERVAL: 5,
        PropertyId.MESSAGE_EXPIRY_INTERVAL: 7,
        PropertyId.CONTENT_TYPE: "t",
    }
    edge.client(will=Will("w", b"x", 1, True, properties))
    will = next(m for m in edge.seen if isinstance(m, OpenSession)).will
    assert will is not None
    assert (will.topic, will.payload, will.qos, will.retain) == ("w", b"x", 1, True)
    assert (will.delay_s, will.expiry_s, will.properties) == (5, 7, b"\x03\x00\x01t")


@pytest.mark.parametrize(("packet", "clean"), [(Disconnect(), True), (Disconnect(4), False), (None, False)])
def test_end_is_reported_with_whether_it_was_clean(packet: Disconnect | None, clean: bool) -> None:
    """DISCONNECT 0x00 discards the will, 0x04 and a lost connection publish it [MQTT-3.14.4-3]."""
    edge = Edge()
    session = edge.client()
    session.drop() if packet is None else session.send(packet)
    edge.round()
    reports = [m for m in edge.seen if isinstance(m, CloseSession)]
    assert [(report.client_id, report.owner_epoch, report.clean) for report in reports] == [("c", 1, clean)]


def test_ends_of_a_storm_are_reported_with_its_claims() -> None:
    """Where nothing but the claim ends, the report waits for the next claims, and a moment at most."""
    edge = Edge(limits(claim_gap_s=0.003))
    first = edge.client("first")
    edge.round(0.004)
    second = edge.client("second")
    edge.seen.clear()
    first.send(Disconnect())
    assert first.closed and edge.seen == []
    third = edge.accept()
    third.connect("first")
    edge.round(0.004)
    assert [type(m) for m in edge.seen] == [CloseSession, OpenSession]
    assert third.read()[0].reason_code == 0
    edge.seen.clear()
    second.drop()
    edge.round()
    assert edge.seen == [] and edge.core.next_deadline() <= edge.now + 0.012
    edge.round(0.0121)
    assert [(m.client_id, m.clean) for m in edge.seen if isinstance(m, CloseSession)] == [("second", False)]


@pytest.mark.parametrize("leaves", ["will", "session"])
def test_an_end_that_leaves_something_is_reported_at_once(leaves: str) -> None:
    """The delay of a will, and the expiry of a session, count from the end of the connection."""
    edge = Edge(limits(claim_gap_s=0.003))
    will = Will("w", b"x", 1) if leaves == "will" else None
    session = edge.client(will=will, properties={PropertyId.SESSION_EXPIRY_INTERVAL: 9} if not will else None)
    session.drop()
    edge.round()
    assert [m.client_id for m in edge.seen if isinstance(m, CloseSession)] == ["c"]


def test_the_close_after_disconnect_says_that_the_will_is_discarded() -> None:
    """With a will the socket stays open until the report is committed: what dies after the close changes nothing."""
    edge = Edge()
    edge.held = {CloseSession}
    session = edge.client(will=Will("w", b"x", 1))
    session.send(Disconnect())
    (report,) = edge.take(CloseSession)
    assert report.clean and not session.closed
    edge.storage(KickSession(7, "c", session.client.number, report.owner_epoch))
    assert not session.closed and edge.core.clients.get(session.client.number) is session.client
    edge.core.clients.close_all(0x8B)
    assert not session.closed
    edge.storage(SessionClosed(report.request, True))
    edge.round()
    assert session.closed and session.read() == []


def test_a_disconnect_that_came_too_late_is_not_confirmed() -> None:
    """Another connection had taken over, and the will was published: closing at once would deny that."""
    edge = Edge()
    edge.held = {CloseSession}
    session = edge.client(will=Will("w", b"x", 1))
    session.send(Disconnect())
    edge.storage(SessionClosed(edge.take(CloseSession)[0].request, False))
    edge.round(9.0)
    assert not session.closed
    edge.round(1.1)
    assert session.closed


def test_a_connect_whose_client_is_gone_is_withdrawn() -> None:
    """Sent again to another primary it ends what the former one opened, and opens nothing."""
    edge = Edge()
    edge.held = {OpenSession}
    first, second = edge.accept(), edge.accept()
    first.connect("c")
    second.connect("c")
    sent = edge.take(OpenSession)
    assert [request.withdrawn for request in sent] == [False, False]
    assert {request.answered_below for request in sent} == {sent[0].request}
    first.drop()
    edge.router(*map_pages(cluster_map(2, "s1", 2)))
    edge.round()
    assert [(request.request, request.withdrawn) for request in edge.take(OpenSession)] == [
        (sent[0].request, True),
        (sent[1].request, False),
    ]


def test_an_edge_whose_router_lives_anew_follows_again() -> None:
    """Simulation seed 3034: the end of a struck peer's link was told to nobody, and the map stood still for ever."""
    edge = Edge()
    assert edge.core.lease._following == "r0"
    moved = cluster_map(2)
    moved.nodes["r0"] = NodeEntry("r0", "router", 2, "r0:1", state=NodeState.ACTIVE)
    edge.core.peers.know(cluster_map())
    edge.router(*map_pages(moved))
    assert edge.core.lease._following == ""


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


def test_takeover_tells_the_older_connection_and_answers() -> None:
    """[MQTT-3.1.4-3]: 0x8E, then the close; the older connection reports nothing any more."""
    edge = Edge()
    session = edge.client()
    edge.held = {SessionKicked}
    edge.storage(KickSession(7, "c", session.client.number, 1))
    assert [packet.reason_code for packet in session.read()] == [0x8E] and session.closed
    assert edge.take(SessionKicked) == [SessionKicked(7, "c", False, 1)]
    edge.round()
    assert not any(isinstance(message, CloseSession) for message in edge.seen)


def test_takeover_of_a_connection_that_is_gone_is_answered_too() -> None:
    """The partition waits for the answer; a newer connection of the client ID is left alone."""
    edge = Edge()
    session = edge.client()
    edge.held = {SessionKicked}
    edge.storage(KickSession(8, "c", session.client.number, 0))  # an owner_epoch before this connection's
    edge.storage(KickSession(9, "c", 12345, 1))
    assert [answer.request for answer in edge.take(SessionKicked)] == [8, 9] and not session.closed


def test_claims_name_open_connections_of_the_partition() -> None:
    """After a poll, an answer of a lower partition_epoch opens nothing."""
    edge = Edge()
    session = edge.client()
    edge.held = {Claims, OpenSession}
    edge.router(*map_pages(cluster_map(2, partition_epoch=3)))
    edge.storage(PollClaims(1, session.client.partition, 3))
    (answer,) = edge.take(Claims)
    assert [(claim.client_id, claim.connection, claim.owner_epoch) for claim in answer.claims] == [
        ("c", session.client.number, 1)
    ]
    late = edge.accept()
    late.connect("c")
    (request,) = edge.take(OpenSession)
    edge.storage(SessionOpened(request.request, request.partition, 2, 0, 9))
    assert late.read() == []
    edge.round(0.2)
    assert [message.request for message in edge.take(OpenSession)] == [request.request]  # asked again


def test_connect_waits_for_a_lease() -> None:
    """A fenced edge claims nothing; the client waits."""
    edge = Edge()
    edge.core.lease.lease_until = START
    edge.round()
    session = edge.accept()
    session.connect()
    assert session.read() == [] and not any(isinstance(m, OpenSession) for m in edge.seen)
    edge.renew()
    assert [packet.reason_code for packet in session.read()] == [0]


def test_fenced_for_too_long_closes_the_clients() -> None:
    """After fence_close_s clients are sent elsewhere with 0x89: DISCONNECT has no 0x88 (table 3-13)."""
    edge = Edge(limits(fence_close_s=10.0))
    session = edge.client()
    edge.core.lease.lease_until = edge.now
    edge.round(1.0)
    edge.round(9.0)
    assert not session.closed
    edge.round(1.1)
    assert session.closed
    assert [packet.reason_code for packet in session.read()] == [0x89]


def test_claim_is_sent_again_in_order_to_a_new_primary() -> None:
    """Requests are kept until answered, and go to the next primary in their order under its epoch."""
    edge = Edge()
    edge.held = {OpenSession}
    for name in ("a", "b", "c", "d", "e"):
        edge.accept().connect(name)
    first = edge.take(OpenSession)
    moved = cluster_map(2, "s1", 2)
    edge.router(*map_pages(moved))
    edge.router(HeartbeatReply(1, edge.now, 1000.0, 2, "r0"))
    edge.round()
    second = [(node, message) for node, message in edge.core.told if isinstance(message, OpenSession)]
    assert {node for node, _ in second} == {"s1"} and {message.partition_epoch for _, message in second} == {2}
    for partition in range(4):
        asked = [message.request for message in first if message.partition == partition]
        assert [message.request for _, message in second if message.partition == partition] == asked


def test_moved_answer_is_asked_again() -> None:
    """A node that is not the primary says so; the request waits a little and is repeated."""
    edge = Edge()
    edge.held = {OpenSession}
    edge.accept().connect()
    (request,) = edge.take(OpenSession)
    edge.storage(Moved(request.request, "partition", request.partition, 2, 2))
    edge.round(0.01)
    assert edge.take(OpenSession) == []
    edge.round(0.1)
    assert [message.request for message in edge.take(OpenSession)] == [request.request]


def test_anonymous_clients_where_they_are_not_allowed() -> None:
    """0x87 without a name, 0x86 with one that nothing can check; 5 and 4 in 3.1.1."""
    edge = Edge()
    closed = ListenerPolicy("tls", False)
    codes = []
    for version, username in ((5, None), (5, "u"), (4, None), (4, "u")):
        session = edge.accept(closed)
        session.connect(version=version, username=username, password=None)
        codes.append(session.read()[0].reason_code)
    assert codes == [0x87, 0x86, 5, 4]


def test_verified_certificate_names_the_client() -> None:
    """It comes before the user name, and is enough where nobody is anonymous."""
    edge = Edge(identify=lambda _: "device-7")
    session = edge.accept(ListenerPolicy("tls", False))
    session.connect(username="somebody-else")
    assert session.read()[0].reason_code == 0 and session.client.identity == "device-7"


def test_connect_rate_and_number_are_limited() -> None:
    """Beyond connect_rate_max and connections_max CONNACK says 0x89; 3 in 3.1.1."""
    edge = Edge(limits(connect_rate_max=2.0))
    codes = []
    for number in range(4):
        session = edge.accept()
        session.connect(f"c{number}")
        codes.append(session.read()[0].reason_code)
    assert codes == [0, 0, 0x89, 0x89]
    edge.round(0.5)
    edge.client("later")
    full = Edge(limits(connections_max=2))
    for name in ("a", "b"):
        full.client(name)
    session = full.accept()
    session.connect("c", version=4)
    assert session.read()[0].reason_code == 3


def test_requests_beyond_the_bound_are_refused() -> None:
    """0x89 when storage does not answer and too much waits."""
    edge = Edge(limits(requests_max=2))
    edge.held = {OpenSession}
    sessions = [edge.accept() for _ in range(3)]
    for number, session in enumerate(sessions):
        session.connect(f"c{number}")
    assert [len(session.read()) for session in sessions[:2]] == [0, 0]
    assert sessions[2].read() == [] or sessions[2].closed


def test_slow_connect_is_cut_whatever_trickles_in() -> None:
    """connect_timeout_s runs from accept; a byte now and then does not stop it."""
    edge = Edge(limits(connect_timeout_s=10.0))
    session = edge.accept()
    for byte in b"\x10\x20\x00\x04MQTT":
        session.send(bytes([byte]))
        edge.round(1.4)
        edge.core.hot.sweep(edge.ns)
    assert session.closed and session.read() == []


def test_declared_length_before_connect_is_bounded() -> None:
    """256 MiB are refused at their fixed header: nothing is buffered."""
    session = Edge().accept()
    session.send(b"\x10\xff\xff\xff\x7f")
    assert session.closed
    bounded = Edge().accept()
    bounded.send(b"\x10\xff\xff\x03")  # 65 535 and its header are more than 64 KiB
    assert bounded.closed


def test_ready_when_every_partition_answers() -> None:
    """Listeners open when the first CONNECT would be served, not when links stand."""
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


def test_codes_that_a_packet_does_not_know() -> None:
    """[MQTT-3.2.2-8] [MQTT-3.14.2-1]: 0x80 stands for what CONNACK or DISCONNECT cannot say."""
    edge = Edge()
    session, waiting = edge.client(), edge.accept()
    edge.core.clients.disconnect(session.client, 0x88)
    waiting.client.version = 5
    edge.core.clients.refuse(waiting.client, 0x93)
    assert [packet.reason_code for end in (session, waiting) for packet in end.read()] == [0x80, 0x80]


def test_two_connects_of_one_packet_run() -> None:
    """What follows CONNECT in the same bytes waits for CONNACK and keeps its order."""
    edge = Edge()
    session = edge.accept()
    from mqtt.codec import encode_packet

    session.send(encode_packet(Connect("c"), 5) + encode_packet(Pingreq(), 5))
    assert [type(packet).__name__ for packet in session.read()] == ["Connack", "Pingresp"]
