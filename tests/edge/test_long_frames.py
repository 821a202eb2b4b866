"""A message longer than a frame is refused at its sender; no node fails."""

from edge.node.node import EdgeNode
from tests.edge.edge_harness import Edge
from wire.messages.frames import FRAME_BYTES_MAX
from wire.messages.nodes import Relay


def test_message_above_frame_limit_is_not_sent() -> None:
    """It is counted; the requester repeats its request."""
    edge = Edge()
    assert not EdgeNode.tell(edge.core.node, "s0", Relay("s1", 1, bytes(FRAME_BYTES_MAX)))
    assert edge.core.counts["control_too_long"] == 1
