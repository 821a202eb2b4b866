"""What a node concludes about itself from the maps it is given."""

import pytest

from wire.cluster_map import ClusterMap, NodeEntry, NodeState
from wire.lease_holder import LeaseHolder
from wire.messages import Registered


def holder(incarnation: int) -> LeaseHolder:
    """Return the holder of a node whose registration was answered."""
    node = LeaseHolder(NodeEntry("r2", "router", incarnation, "127.0.0.1:1"), lambda *_: True, lambda _: None)
    node.handle(1.0, Registered(1, 9))
    return node


@pytest.mark.parametrize(
    ("incarnation", "state", "ended"),
    [
        (6, NodeState.DEAD, False),  # our former life, in a map from before we registered
        (6, NodeState.ACTIVE, False),
        (7, NodeState.ACTIVE, False),
        (7, NodeState.DEAD, True),
        (8, NodeState.ACTIVE, True),  # somebody is newer than we are
    ],
)
def test_only_a_map_that_knows_this_incarnation_ends_it(incarnation: int, state: str, ended: bool) -> None:
    """A router reads its own log anew after a restart: its former deaths come after the answer to Register."""
    node = holder(7)
    entry = NodeEntry("r2", "router", incarnation, "127.0.0.1:1", state=state)
    node.take_own(2.0, ClusterMap(cluster="c", epoch=3, nodes={"r2": entry}))
    assert node.ended is ended
