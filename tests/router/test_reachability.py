"""Selection of the lease to end when two live nodes do not reach each other."""

import pytest

from router.placement.reachability import Reachability
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState, PartitionEntry

TIERS = {"e": "edge", "r": "router", "s": "storage"}


def the_map(*names: str, in_sync: tuple[str, ...] = ("s1", "s2")) -> ClusterMap:
    entries = {name: NodeEntry(name, TIERS[name[0]], 1, "h:1", state=NodeState.ACTIVE) for name in names}
    return ClusterMap("c", 1, entries, [PartitionEntry(1, in_sync[0], in_sync)], lease_s=2.0)


def worst_connected(complaints: dict[str, tuple[str, ...]], cluster_map: ClusterMap, waited_s: float = 4.0) -> str:
    """Return the node that loses its lease after the complaints lasted this long."""
    reach = Reachability("r1")
    assert not reach.worst_connected(0.0, cluster_map, complaints)
    return reach.worst_connected(waited_s, cluster_map, complaints)


EVERYBODY = ("e1", "e2", "r1", "r2", "s1", "s2")


@pytest.mark.parametrize(
    ("complaints", "expected"),
    [
        ({"e1": ("s2",)}, "e1"),  # at equal counts the edge: its clients reconnect elsewhere
        ({"s2": ("e1",)}, "e1"),
        ({"e1": ("e2",)}, "e2"),  # in one tier, the higher name
        ({"s1": ("s2",), "s2": ("s1",)}, "s2"),
        ({"r2": ("s2",)}, "r2"),
        ({"e1": ("s2",), "e2": ("s2",)}, "s2"),  # the worse-connected end
        ({"e1": ("r1",)}, "e1"),  # the deciding leader keeps its lease
        ({"e1": ("r1",), "e2": ("r1",)}, "e2"),
    ],
)
def test_node_with_most_complaints_loses_its_lease(complaints: dict[str, tuple[str, ...]], expected: str) -> None:
    """One node only."""
    assert worst_connected(complaints, the_map(*EVERYBODY)) == expected


def test_complaint_counts_after_two_leases() -> None:
    """A leader may know a new node before all its links are established."""
    assert worst_connected({"e1": ("s2",)}, the_map(*EVERYBODY), 3.9) == ""


def test_last_in_sync_replica_keeps_its_lease() -> None:
    """Then the other end loses its lease, even if more nodes reach it."""
    cluster_map = the_map(*EVERYBODY, in_sync=("s2",))
    assert worst_connected({"e1": ("s2",), "e2": ("s2",)}, cluster_map) == "e2"
