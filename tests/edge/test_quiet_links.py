"""Keepalives on silent links."""

from edge.cluster.peer_table import KEEPALIVES_MAX
from edge.loop.options import ConnOptions
from edge.loop.state import LINK
from tests.edge.edge_harness import Edge
from tests.edge.test_broken_links import feed
from wire.messages.cluster_map import NodeEntry, NodeState
from wire.messages.hello import NodeIdentity, encode_hello

LINKS = 35


def test_keepalives_of_many_links_are_sent_in_slices() -> None:
    """A keepalive on each of a thousand links at once would delay clients by milliseconds."""
    edge = Edge()
    conns = []
    names = [f"e{number}" for number in range(10, 10 + LINKS)]
    edge.register(*(NodeEntry(name, "edge", 1, f"{name}:1", state=NodeState.ACTIVE) for name in names))
    for name in names:
        conns.append(edge.core.hot.attach(-1, LINK, ConnOptions(), edge.ns))
        feed(edge, conns[-1], encode_hello(NodeIdentity("c", name, "edge", 1, f"{name}:1")))
    edge.turn(2.0)
    while sum(bool(edge.core.hot.take_output(conn)) for conn in conns):
        edge.turn(0.001)
    spoken, in_one_turn = set(), []
    edge.turn(1.0)
    for _ in range(10):
        said = {at for at, conn in enumerate(conns) if edge.core.hot.take_output(conn)}
        in_one_turn.append(len(said))
        spoken |= said
        edge.turn(0.001)
    assert len(spoken) == LINKS and max(in_one_turn) == KEEPALIVES_MAX, in_one_turn
