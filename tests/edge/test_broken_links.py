"""Malformed frames of another node: its link ends, that incarnation is fenced, the edge continues."""

import logging

import pytest

from edge.loop.options import ConnOptions
from edge.loop.state import LINK, LoopConnection
from tests.edge.edge_harness import Edge
from tests.fuzz.nested import nested
from tests.wire.test_hello import hello_of_version
from wire.messages.cluster_map import NodeEntry, NodeState
from wire.messages.frames import HEADER, PROTOCOL_VERSION, FrameKind
from wire.messages.hello import NodeIdentity, encode_hello


def link(edge: Edge, incarnation: int, behind: bytes = b"") -> LoopConnection:
    """Register and connect as edge e9, with bytes directly behind the HELLO."""
    edge.register(NodeEntry("e9", "edge", incarnation, "e9:1", state=NodeState.ACTIVE))
    conn = edge.core.hot.attach(-1, LINK, ConnOptions(), edge.ns)
    feed(edge, conn, encode_hello(NodeIdentity("c", "e9", "edge", incarnation, "e9:1")) + behind)
    return conn


def feed(edge: Edge, conn: LoopConnection, data: bytes) -> None:
    edge.core.hot.begin_turn(edge.ns)
    edge.core.hot.feed(conn, data)
    edge.core.hot.end_turn(edge.ns)
    edge.turn()


def frame(payload: bytes, number: int = 1) -> bytes:
    return HEADER.pack(len(payload), FrameKind.CONTROL, 0, PROTOCOL_VERSION, number) + payload


def test_malformed_frame_fences_the_incarnation() -> None:
    """Only the incarnation: the node's next one is accepted."""
    edge = Edge()
    conn = link(edge, 5)
    assert not conn.closed
    feed(edge, conn, frame(nested(10_000)))
    assert conn.closed
    assert edge.core.counts["frames_unreadable"] == 1
    assert link(edge, 5).closed
    assert not link(edge, 6).closed


def test_another_node_at_a_dialled_address_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Another node has the address now: its link would make the edge dial the removed node."""
    edge = Edge()
    for node, tier, closed in (("s2", "storage", True), ("", "router", True), ("s1", "storage", False)):
        dialled, _ = edge.core.peers.hello_for(node, tier)
        conn = edge.core.hot.attach(-1, LINK, ConnOptions(context=dialled), edge.ns)
        conn.context = dialled
        with caplog.at_level(logging.INFO, logger="edge.cluster.peer_table"):
            feed(edge, conn, encode_hello(NodeIdentity("c", "s1", "storage", 5, "s1:1")))
        assert conn.closed == closed
    assert caplog.messages == [
        f"refused a link: expected {expected}, found storage s1" for expected in ("storage s2", "router ")
    ]


def test_malformed_frame_directly_behind_the_hello() -> None:
    """It waits until the HELLO is accepted, and is read at the start of an iteration."""
    for behind in (frame(nested(10_000)), frame(b"x", 7), b"\xff" * 16):
        edge = Edge()
        assert link(edge, 5, behind).closed


def test_slow_handshake_is_closed() -> None:
    """The timeout of HELLO runs from accept, regardless of input."""
    edge = Edge()
    options = ConnOptions(connect_timeout_ns=4_000_000_000)
    conn = edge.core.hot.attach(-1, LINK, options, edge.ns)
    for byte in encode_hello(NodeIdentity("c", "s1", "storage", 5))[:6]:
        edge.now += 1
        feed(edge, conn, bytes((byte,)))
        edge.core.hot.sweep(edge.ns)
        if conn.closed:
            return
    raise AssertionError("still waited for")


@pytest.mark.parametrize("readable", [True, False])
def test_other_protocol_version_is_logged_once_on_both_sides(
    caplog: pytest.LogCaptureFixture, *, readable: bool
) -> None:
    """Refused by the compiled loop, counted, and answered with our HELLO: the other side can log both versions too."""
    edge = Edge()
    conn = edge.core.hot.attach(-1, LINK, ConnOptions(), edge.ns)
    with caplog.at_level(logging.INFO, logger="edge.cluster.peer_table"):
        feed(edge, conn, hello_of_version(2, "s1", "storage", readable=readable))
    assert conn.closed
    assert HEADER.unpack_from(edge.core.hot.take_output(conn))[1:4] == (FrameKind.HELLO, 0, PROTOCOL_VERSION)
    assert edge.core.counts["links_refused_hello"] == 1
    (line,) = caplog.messages
    peer = "s1" if readable else "the peer"
    assert line == f"refused a link: {peer} speaks link protocol version 2, this node {PROTOCOL_VERSION}"


def test_links_of_another_cluster_end_when_the_edge_learns_its_own() -> None:
    """Its data folder was empty; from then on that node is refused, and logged if it answered as a seed."""
    edge = Edge()
    edge.core.peers.identity = edge.core.peers.identity._replace(cluster_id="")
    theirs = encode_hello(NodeIdentity("c", "r9", "router", 5, "r9:1", "2" * 32))
    dialled, _ = edge.core.peers.hello_for("", "router")
    for closed in (False, True):
        conn = edge.core.hot.attach(-1, LINK, ConnOptions(context=dialled), edge.ns)
        conn.context = dialled
        feed(edge, conn, theirs)
        assert conn.closed == closed
        edge.core.peers.belong("1" * 32)
        assert conn.closed
    assert "2" * 32 in edge.core.peers.other_cluster
