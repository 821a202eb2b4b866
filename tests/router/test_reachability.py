"""Two live nodes that do not reach each other: whose lease ends."""

import pytest

from router.placement.reachability import Reachability
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState, PartitionEntry

TIERS = {"e": "edge", "r": "router", "s": "storage"}


def the_map(*names: str, in_sync: tuple[str, ...] = ("s1", "s2")) -> ClusterMap:
    entries = {name: NodeEntry(name, TIERS[name[0]], 1, "h:1", state=NodeState.ACTIVE) for name in names}
    return ClusterMap("c", 1, entries, [PartitionEntry(1, in_sync[0], in_sync)], lease_s=2.0)


def judged(complaints: dict[str, tuple[str, ...]], cluster_map: ClusterMap, waited_s: float = 4.0) -> str:
    """Return who loses its lease once the complaints have stood for so long."""
    reach = Reachability("r1")
    assert not reach.worst_connected(0.0, cluster_map, complaints)
    return reach.worst_connected(waited_s, cluster_map, complaints)


EVERYBODY = ("e1", "e2", "r1", "r2", "s1", "s2")


@pytest.mark.parametrize(
    ("complaints", "expected"),
    [
        ({"e1": ("s2",)}, "e1"),  # of equals the edge: its clients find another one
        ({"s2": ("e1",)}, "e1"),
        ({"e1": ("e2",)}, "e2"),  # of equals of a tier the higher name
        ({"s1": ("s2",), "s2": ("s1",)}, "s2"),
        ({"r2": ("s2",)}, "r2"),
        ({"e1": ("s2",), "e2": ("s2",)}, "s2"),  # the lonelier end
        ({"e1": ("r1",)}, "e1"),  # who judges stays
        ({"e1": ("r1",), "e2": ("r1",)}, "e2"),
    ],
)
def test_whose_lease_ends(complaints: dict[str, tuple[str, ...]], expected: str) -> None:
    """The end with more complaints; one node only."""
    assert judged(complaints, the_map(*EVERYBODY)) == expected


def test_a_complaint_must_stand_for_two_leases() -> None:
    """A node that has just started may be known before all its links stand."""
    assert judged({"e1": ("s2",)}, the_map(*EVERYBODY), 3.9) == ""


def test_the_last_replica_in_sync_stays() -> None:
    """Then the other end goes, however many more reach it."""
    cluster_map = the_map(*EVERYBODY, in_sync=("s2",))
    assert judged({"e1": ("s2",), "e2": ("s2",)}, cluster_map) == "e2"
