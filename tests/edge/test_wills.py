"""Wills that an edge's own partition fires."""

from tests.edge.edge_harness import Edge
from tests.edge.session_answers import publishes
from wire.messages.wills import FireWill, Will, WillFired


def test_will_is_fanned_out_and_reported() -> None:
    """The partition hears WillFired when everybody has it."""
    edge = Edge()
    session = edge.client("s")
    session.subscribe("w")
    session.read()
    edge.held = {WillFired}
    edge.storage(FireWill(3, 1, 1, 17, Will("w", b"bye", 1)))
    edge.turn()
    (copy,) = publishes(session)
    assert (copy.payload, copy.qos) == (b"bye", 1)
    assert [(m.request, m.partition, m.op_index) for m in edge.take(WillFired)] == [(3, 1, 17)]
