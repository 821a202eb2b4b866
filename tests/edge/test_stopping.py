"""The orderly stop of an edge: last responses, then DISCONNECT 0x8B, then the incarnation leaves the map."""

import pytest

from edge.clients.stopping import ANSWER_S, FLUSH_S
from mqtt.packets import Connack, Disconnect, Puback
from tests.edge.edge_harness import Edge, Session, cluster_map
from wire.messages.cluster_map import NodeState
from wire.messages.map_pages import map_pages
from wire.messages.nodes import Leave
from wire.messages.routes import Destinations, Resolve
from wire.messages.sessions import CloseSession, OpenSession


def stop(edge: Edge) -> None:
    edge.core.stop()
    edge.turn()


def reasons(session: Session) -> list[int]:
    return [packet.reason_code for packet in session.read() if isinstance(packet, Disconnect)]


def test_every_version_is_closed_and_reported() -> None:
    """0x8B for MQTT 5, the close alone for 3.1.1; neither is a DISCONNECT of the client (section 3.14.4)."""
    edge = Edge()
    new, old = edge.client("new", 5, {0x11: 60}, clean_start=True), edge.client("old", 4, clean_start=False)
    silent = edge.accept()
    stop(edge)
    assert reasons(new) == [0x8B] and new.closed
    assert old.read() == [] and old.closed
    assert silent.read() == [] and silent.closed
    ends = [message for message in edge.seen if isinstance(message, CloseSession)]
    assert {message.client_id: message.clean for message in ends} == {"new": False, "old": False}


def test_stop_reads_no_more_and_answers_received_packets() -> None:
    """PUBACK before DISCONNECT, once the destinations have acknowledged."""
    edge = Edge()
    session = edge.client()
    edge.held = {Resolve}
    session.publish("a/b", qos=1, identifier=5)  # waits for its route
    stop(edge)
    assert not session.closed and session.read() == []
    assert not edge.core.hot.reading
    edge.held = set()
    edge.routes["a/b"] = Destinations()
    edge.turn(0.05)
    edge.turn(0.05)
    packets = session.read()
    assert [type(packet) for packet in packets] == [Puback, Disconnect]
    assert packets[0].packet_identifier == 5 and packets[1].reason_code == 0x8B


def test_unanswered_publisher_is_closed_at_the_deadline() -> None:
    """The message is not acknowledged: the client sends it again elsewhere."""
    edge = Edge()
    session = edge.client()
    edge.held = {Resolve}
    session.publish("a/b", qos=1, identifier=5)
    stop(edge)
    edge.turn(ANSWER_S - 0.1)
    assert not session.closed
    edge.turn(0.2)
    assert reasons(session) == [0x8B]


@pytest.mark.parametrize("answered", [True, False])
def test_pending_connect_is_answered(answered: bool) -> None:
    """The claim is valid: CONNACK, then 0x8B; without a response 0x88 (DISCONNECT follows CONNACK only)."""
    edge = Edge()
    edge.held = {OpenSession}
    session = edge.accept()
    session.connect("late")
    stop(edge)
    assert not session.closed
    if answered:
        edge.held = set()
        edge.turn(0.1)
        edge.turn(0.1)
        assert [(type(packet), packet.reason_code) for packet in session.read()] == [(Connack, 0), (Disconnect, 0x8B)]
    else:
        edge.turn(ANSWER_S)
        assert [(type(packet), packet.reason_code) for packet in session.read()] == [(Connack, 0x88)]


def test_edge_leaves_after_clients_and_reports() -> None:
    """Leave is its last message; the map's response ends the process."""
    edge = Edge()
    edge.client("c", 5, {0x11: 60})
    edge.held = {CloseSession}
    stop(edge)
    edge.core.hot.dirty_conns()  # bytes that sockets would have sent
    edge.turn(0.1)
    assert not edge.take(Leave)
    edge.held = set()
    edge.turn(0.1)
    edge.turn(0.1)
    assert not edge.core.node.has_lease() and not edge.core.stopping.order.ended
    assert any(isinstance(message, Leave) for message in edge.seen)
    dead = cluster_map(2)
    dead.nodes["e0"] = type(dead.nodes["e0"])("e0", "edge", 1, "e0:1", state=NodeState.DEAD)
    edge.router(*map_pages(dead))
    edge.turn(0.1)
    assert edge.core.stopping.order.ended


def test_unreachable_storage_delays_the_stop_briefly() -> None:
    """The reports are not answered: the edge leaves anyway, which reports the end of its connections."""
    edge = Edge()
    edge.client("c", 5, {0x11: 60})
    edge.held = {CloseSession}
    stop(edge)
    edge.turn(FLUSH_S)
    edge.turn(0.1)
    assert any(isinstance(message, Leave) for message in edge.seen)


def test_many_clients_are_closed_in_slices() -> None:
    """The lease is renewed between them."""
    edge = Edge()
    sessions = [edge.client(f"c{number}") for number in range(450)]
    edge.core.stop()
    ended = []
    for _ in range(3):
        edge.core.hot.begin_turn(edge.ns)
        edge.core.hot.end_turn(edge.ns)
        ended.append(sum(session.closed for session in sessions))
    assert ended == [200, 400, 450]
