"""Reports of an edge to the partition of a client ID: claims, ends, takeovers, withdrawals."""

import pytest

from conf.settings import ListenerSettings
from edge.listeners.admission_control import AdmissionControl
from mqtt.packets import Disconnect, Will
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge, cluster_map
from tests.edge.edge_limits import limits
from tests.edge.rights.ruled import Vouched, principal
from wire.messages.connects import decode_connects, encode_record
from wire.messages.control import join_controls
from wire.messages.map_pages import map_pages
from wire.messages.nodes import HeartbeatReply, Moved
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


def test_claims_of_a_connect_storm_are_batched() -> None:
    """The first CONNECT is claimed at once, the next ones share a batch; the order is kept."""
    edge = Edge(limits(claim_gap_s=0.003))
    edge.client("first")
    sessions = [edge.accept() for _ in range(3)]
    for number, session in enumerate(sessions):
        session.connect(f"c{number}")
    assert [m.client_id for m in edge.seen if isinstance(m, OpenSession)] == ["first"]
    assert edge.core.next_deadline() <= edge.now + 0.003
    edge.turn(0.0031)
    assert [m.client_id for m in edge.seen if isinstance(m, OpenSession)] == ["first", "c0", "c1", "c2"]
    assert all(session.read()[0].reason_code == 0 for session in sessions)


def test_claim_gap_grows_with_small_batches() -> None:
    """A later single CONNECT waits no longer than at first."""
    edge = Edge(limits(claim_gap_s=0.003))
    edge.client("first")
    waits_ms = []
    for moment, together in enumerate((2, 2, 2, 17, 1, 1)):
        sessions = [edge.accept() for _ in range(together)]
        for number, session in enumerate(sessions):
            session.connect(f"c{moment}-{number}")
        waits_ms.append(round(1000 * (edge.core.next_deadline() - edge.now)))
        edge.turn(waits_ms[-1] / 1000 + 0.0001)
        assert all(session.read()[0].reason_code == 0 for session in sessions)
    assert waits_ms == [3, 6, 12, 12, 6, 3]


def test_will_claim_separates_delay_and_expiry() -> None:
    """The partition handles them; other properties are copied."""
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


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1%" + "x" * 200, ""])
def test_will_has_address_and_certificate_of_its_client(address: str) -> None:
    """Another edge may fire it long after this one died, and checks both."""
    vouched = Vouched()
    vouched.known["anna"] = principal("anna", fingerprint="ab" * 32)
    edge = Edge(steps=[vouched])
    session = edge.accept()
    if address:
        intake = AdmissionControl(ListenerSettings(name="plain", port=0, tls=False), ())
        session.client.seat = intake.enter(address)
    session.connect("c", username="anna", password=b"p", will=Will("gone"))
    opening = next(message for message in edge.seen if isinstance(message, OpenSession))
    (decoded,) = decode_connects(join_controls([encode_record(opening)]))
    assert isinstance(decoded, OpenSession) and decoded.will is not None
    assert (decoded.will.address, decoded.will.fingerprint) == (address[:128], "ab" * 32)


@pytest.mark.parametrize(("packet", "clean"), [(Disconnect(), True), (Disconnect(4), False), (None, False)])
def test_end_report_says_whether_clean(packet: Disconnect | None, clean: bool) -> None:
    """DISCONNECT 0x00 discards the will, 0x04 and a lost connection publish it [MQTT-3.14.4-3]."""
    edge = Edge()
    session = edge.client()
    session.drop() if packet is None else session.send(packet)
    edge.turn()
    reports = [m for m in edge.seen if isinstance(m, CloseSession)]
    assert [(report.client_id, report.owner_epoch, report.clean) for report in reports] == [("c", 1, clean)]


def test_ends_are_reported_with_claims() -> None:
    """Without session and will the report waits for the next claims, for a short time at most."""
    edge = Edge(limits(claim_gap_s=0.003))
    first = edge.client("first")
    edge.turn(0.004)
    second = edge.client("second")
    edge.seen.clear()
    first.send(Disconnect())
    assert first.closed and edge.seen == []
    third = edge.accept()
    third.connect("first")
    edge.turn(0.004)
    assert [type(m) for m in edge.seen] == [CloseSession, OpenSession]
    assert third.read()[0].reason_code == 0
    edge.seen.clear()
    second.drop()
    edge.turn()
    assert edge.seen == [] and edge.core.next_deadline() <= edge.now + 0.012
    edge.turn(0.0121)
    assert [(m.client_id, m.clean) for m in edge.seen if isinstance(m, CloseSession)] == [("second", False)]


@pytest.mark.parametrize("leaves", ["will", "session"])
def test_end_with_session_or_will_is_reported_at_once(leaves: str) -> None:
    """The delay of a will, and the expiry of a session, count from the end of the connection."""
    edge = Edge(limits(claim_gap_s=0.003))
    will = Will("w", b"x", 1) if leaves == "will" else None
    session = edge.client(will=will, properties={PropertyId.SESSION_EXPIRY_INTERVAL: 9} if not will else None)
    session.drop()
    edge.turn()
    assert [m.client_id for m in edge.seen if isinstance(m, CloseSession)] == ["c"]


def test_close_after_disconnect_confirms_the_discarded_will() -> None:
    """The socket stays open until the report is committed: later failures have no effect."""
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
    edge.turn()
    assert session.closed and session.read() == []


def test_late_disconnect_is_not_confirmed() -> None:
    """A takeover had published the will: an immediate close would deny that."""
    edge = Edge()
    edge.held = {CloseSession}
    session = edge.client(will=Will("w", b"x", 1))
    session.send(Disconnect())
    edge.storage(SessionClosed(edge.take(CloseSession)[0].request, False))
    edge.turn(9.0)
    assert not session.closed
    edge.turn(1.1)
    assert session.closed


def test_connect_of_closed_client_is_withdrawn() -> None:
    """Sent again to another primary it ends the former's session, and opens none."""
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
    edge.turn()
    assert [(request.request, request.withdrawn) for request in edge.take(OpenSession)] == [
        (sent[0].request, True),
        (sent[1].request, False),
    ]


def test_takeover_disconnects_the_older_connection() -> None:
    """[MQTT-3.1.4-3]: 0x8E, then the close; the older connection sends no report any more."""
    edge = Edge()
    session = edge.client()
    edge.held = {SessionKicked}
    edge.storage(KickSession(7, "c", session.client.number, 1))
    assert [packet.reason_code for packet in session.read()] == [0x8E] and session.closed
    assert edge.take(SessionKicked) == [SessionKicked(7, "c", False, 1)]
    edge.turn()
    assert not any(isinstance(message, CloseSession) for message in edge.seen)


def test_takeover_of_closed_connection_is_answered() -> None:
    """The partition waits for the response; a newer connection of the client ID is not affected."""
    edge = Edge()
    session = edge.client()
    edge.held = {SessionKicked}
    edge.storage(KickSession(8, "c", session.client.number, 0))  # an owner_epoch before this connection's
    edge.storage(KickSession(9, "c", 12345, 1))
    assert [answer.request for answer in edge.take(SessionKicked)] == [8, 9] and not session.closed


def test_claims_poll_lists_open_connections() -> None:
    """After a poll, a response of a lower partition_epoch opens no session."""
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
    edge.turn(0.2)
    assert [message.request for message in edge.take(OpenSession)] == [request.request]  # requested again


def test_claim_is_sent_again_in_order_to_a_new_primary() -> None:
    edge = Edge()
    edge.held = {OpenSession}
    for name in ("a", "b", "c", "d", "e"):
        edge.accept().connect(name)
    first = edge.take(OpenSession)
    moved = cluster_map(2, "s1", 2)
    edge.router(*map_pages(moved))
    edge.router(HeartbeatReply(1, edge.now, 1000.0, 2, "r0"))
    edge.turn()
    second = [(node, message) for node, message in edge.core.told if isinstance(message, OpenSession)]
    assert {node for node, _ in second} == {"s1"} and {message.partition_epoch for _, message in second} == {2}
    for partition in range(4):
        asked = [message.request for message in first if message.partition == partition]
        assert [message.request for _, message in second if message.partition == partition] == asked


def test_moved_response_is_retried() -> None:
    edge = Edge()
    edge.held = {OpenSession}
    edge.accept().connect()
    (request,) = edge.take(OpenSession)
    edge.storage(Moved(request.request, "partition", request.partition, 2))
    edge.turn(0.01)
    assert edge.take(OpenSession) == []
    edge.turn(0.1)
    assert [message.request for message in edge.take(OpenSession)] == [request.request]
