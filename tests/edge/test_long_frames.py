"""What does not fit a frame is refused where it is sent; it ends no node."""

from edge.node.node import EdgeNode
from tests.edge.edge_harness import Edge
from wire.messages.frames import FRAME_BYTES_MAX
from wire.messages.nodes import Relay


def test_a_message_too_long_is_not_sent() -> None:
    """Counted; whoever waits for the answer asks again."""
    edge = Edge()
    assert not EdgeNode.tell(edge.core.node, "s0", Relay("s1", 1, bytes(FRAME_BYTES_MAX)))
    assert edge.core.counts["control_too_long"] == 1
