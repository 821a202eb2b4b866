"""Live nodes without a link, as reported in heartbeats."""

import pytest

from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState
from wire.messages.hello import TIER_EDGE, TIER_STORAGE, PeerKey
from wire.node.unreached import Unreached

S1, S2 = PeerKey("s1", TIER_STORAGE, 1), PeerKey("s2", TIER_STORAGE, 1)


def the_map(**states: str) -> ClusterMap:
    entries = {
        name: NodeEntry(
            name, TIER_EDGE if name[0] == "e" else TIER_STORAGE, 1, "h:1", state=states.get(name, NodeState.ACTIVE)
        )
        for name in ("e1", "s1", "s2")
    }
    return ClusterMap("c", 1, entries, lease_s=2.0)


def test_unreached_reports_a_link_down_for_a_lease() -> None:
    """Until it is established again."""
    unreached = Unreached("e1")
    unreached.link_up(S1)
    unreached.link_up(S2)
    assert unreached.nodes(0.0, the_map()) == []
    unreached.link_down(S2)
    assert unreached.nodes(10.0, the_map()) == []
    assert unreached.nodes(11.9, the_map()) == []
    assert unreached.nodes(12.1, the_map()) == ["s2"]
    unreached.link_up(S2)
    assert unreached.nodes(12.2, the_map()) == []


def test_unreached_counts_from_the_map_for_a_node_never_linked() -> None:
    """Dead nodes and the local node are not reported."""
    unreached = Unreached("e1")
    assert unreached.nodes(0.0, the_map(s2=NodeState.DEAD)) == []
    assert unreached.nodes(2.5, the_map(s2=NodeState.DEAD)) == ["s1"]
    assert unreached.nodes(3.0, the_map()) == ["s1"]
    assert unreached.nodes(5.5, the_map()) == ["s1", "s2"]


def test_unreached_ignores_links_of_a_former_incarnation() -> None:
    """Their start and end have no effect on the incarnation of the map."""
    unreached = Unreached("e1")
    unreached.link_up(S1)
    unreached.link_up(S2)
    unreached.link_down(PeerKey("s2", TIER_STORAGE, 7))
    assert unreached.nodes(0.0, the_map()) == []
    unreached.link_up(PeerKey("s1", TIER_STORAGE, 7))
    assert unreached.nodes(1.0, the_map()) == []
    assert unreached.nodes(3.5, the_map()) == ["s1"]


def test_unreached_scans_all_nodes_only_after_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand nodes were compared for each heartbeat; a map that was updated in place counts as changed."""
    unreached, known = Unreached("e1"), the_map()
    unreached.link_up(S1)
    assert unreached.nodes(0.0, known) == []
    with monkeypatch.context() as held:
        held.setattr(NodeEntry, "alive", property(lambda _: pytest.fail("looked at")))
        assert unreached.nodes(2.5, known) == ["s2"]
    known.nodes["s3"] = NodeEntry("s3", TIER_STORAGE, 1, "h:1", state=NodeState.ACTIVE)
    known.epoch += 1
    assert unreached.nodes(3.0, known) == ["s2"]
    assert unreached.nodes(5.5, known) == ["s2", "s3"]
