"""Nodes that stop in order: moved roles, kept roles, and requests that are handled together."""

from collections import Counter

import pytest

from router.map.commands import DeclareDead, Delegate, PlacePartitions, PlaceShards, StopNodes
from router.map.leases import LeaseTable
from router.map.stop_requests import GATHER_S, GATHER_S_MAX, StopRequests
from router.placement.changes import placement_change
from tests.router.test_cluster_map import Machine, with_storage
from wire.messages.cluster_map import NodeState, PartitionEntry
from wire.messages.nodes import RequestChange


def primaries(machine: Machine) -> Counter[str]:
    return Counter(placement.primary for placement in machine.map.partitions)


def test_stop_spreads_primaries_over_in_sync_backups() -> None:
    """The node leaves the copies too, so that its end changes no partition again."""
    machine = with_storage("s1", "s2", "s3", replicas=3, min_in_sync=2)
    before = machine.map.epoch
    assert machine.do(StopNodes({"s1": 1})) == ""
    assert machine.map.epoch == before + 1
    assert machine.map.nodes["s1"].state == NodeState.DRAINING and machine.map.is_alive("s1", 1)
    assert set(primaries(machine)) == {"s2", "s3"}
    assert max(primaries(machine).values()) - min(primaries(machine).values()) <= 1
    assert all(placement.in_sync and "s1" not in placement.in_sync for placement in machine.map.partitions)
    placements = list(machine.map.partitions)
    assert machine.do(DeclareDead("s1", 1)) == ""
    assert list(machine.map.partitions) == placements
    assert machine.register("s1", 2) == ""
    assert machine.map.nodes["s1"].state == NodeState.ACTIVE


def test_stop_drops_no_replica_below_the_minimum() -> None:
    """With two copies that both must acknowledge, the primary moves and the copy stays in sync."""
    machine = with_storage("s1", "s2", replicas=2, min_in_sync=2)
    machine.do(StopNodes({"s1": 1}))
    assert primaries(machine) == {"s2": 8}
    assert all(set(placement.in_sync) == {"s1", "s2"} for placement in machine.map.partitions)


@pytest.mark.parametrize("replicas", [1, 2])
def test_stop_of_a_whole_tier_keeps_all_placements(replicas: int) -> None:
    """No node hands over to another that stops; after a restart in any order every primary is unchanged."""
    machine = with_storage("s1", "s2", replicas=replicas)
    before = [(placement.primary, placement.in_sync) for placement in machine.map.partitions]
    machine.do(StopNodes({"s1": 1, "s2": 1}))
    assert [(placement.primary, placement.in_sync) for placement in machine.map.partitions] == before
    machine.register("s2", 2)
    machine.register("s1", 2)
    assert [(placement.primary, placement.in_sync) for placement in machine.map.partitions] == before


def test_later_stop_hands_over_to_remaining_nodes_only() -> None:
    """The last of three nodes that stop one after the other keeps its roles."""
    machine = with_storage("s1", "s2", "s3", replicas=3)
    for name in ("s1", "s2"):
        machine.do(StopNodes({name: 1}))
    assert primaries(machine) == {"s3": 8}
    machine.do(StopNodes({"s3": 1}))
    assert primaries(machine) == {"s3": 8}


def test_stopping_node_does_not_succeed_a_dead_one() -> None:
    """It may end soon: without another candidate the partition waits, and its copies stay in sync."""
    machine = with_storage("s1", "s2", replicas=2, min_in_sync=2)
    machine.do(StopNodes({"s1": 1, "s2": 1}))
    number = next(n for n, placement in enumerate(machine.map.partitions) if placement.primary == "s1")
    machine.do(DeclareDead("s1", 1))
    assert machine.map.partitions[number].primary == ""
    assert set(machine.map.partitions[number].in_sync) == {"s1", "s2"}
    machine.register("s1", 2)
    assert machine.map.partitions[number].primary == "s1"


def test_copy_is_not_rebuilt_on_a_stopping_node() -> None:
    machine = with_storage("s1", "s2", "s3", replicas=2)
    machine.do(PlacePartitions({0: PartitionEntry(2, "s1", ("s1",), ())}))
    machine.do(StopNodes({"s2": 1}))
    at = machine.placement().epoch
    assert placement_change(machine.map, "s1", RequestChange(1, 0, at, "add_joining", "s2")) == (None, "s2 stops")
    machine.do(PlacePartitions({0: PartitionEntry(at + 1, "s1", ("s1", "s2"), ())}))
    change, refusal = placement_change(machine.map, "s1", RequestChange(1, 0, at + 1, "relinquish", "s2"))
    assert change is None and "stops" in refusal


def test_shards_move_to_remaining_routers_and_back() -> None:
    """Including a pinned prefix; a group that stops as a whole keeps its owners for the next start."""
    machine = Machine()
    for name in ("r1", "r2", "r3"):
        machine.register(name)
    machine.do(Delegate("plant", 1, "r1"))
    machine.do(StopNodes({"r1": 1}))
    assert {shard.owner for shard in machine.map.shards} == {"r2", "r3"}
    assert "stops" in machine.do(PlaceShards({0: "r1"}))
    machine.do(DeclareDead("r1", 1))
    machine.register("r1", 2)
    assert machine.map.shards[-1].owner == "r1"
    before = [shard.owner for shard in machine.map.shards]
    machine.do(StopNodes({"r1": 2, "r2": 1, "r3": 1}))
    assert [shard.owner for shard in machine.map.shards] == before
    machine.register("r2", 2)
    assert [shard.owner for shard in machine.map.shards] == before


def test_stop_skips_ended_and_stopping_incarnations() -> None:
    """A repeated request changes nothing; nor does one of a former incarnation, or of an unknown node."""
    machine = with_storage("s1", "s2")
    machine.do(StopNodes({"s1": 1}))
    epoch = machine.map.epoch
    for lives in ({"s1": 1}, {"s2": 7}, {"nobody": 1}, {}):
        assert machine.do(StopNodes(lives)) == ""
        assert machine.map.epoch == epoch


def test_concurrent_stop_requests_are_handled_together() -> None:
    """After a short delay from the newest, bounded from the oldest."""
    stops = StopRequests()
    assert stops.take(0.0) == {} and stops.next_deadline() == float("inf")
    stops.add(10.0, "s1", 1)
    stops.add(10.1, "s2", 1)
    stops.add(10.2, "s1", 1)  # repeated
    assert stops.take(10.1 + GATHER_S - 0.01) == {}
    assert stops.take(10.1 + GATHER_S) == {"s1": 1, "s2": 1}
    for number in range(20):
        stops.add(20.0 + number / 10, f"s{number}", 1)
    assert stops.next_deadline() == 20.0 + GATHER_S_MAX
    stops.clear()
    assert stops.take(99.0) == {}


def test_stopped_incarnation_is_declared_dead_once() -> None:
    """Repeats change nothing, unless the proposal failed."""
    machine = with_storage("s1", "s2")
    table = LeaseTable(2.0, 0.1)
    table.begin(0.0, machine.map)
    assert table.record_end(("s1", 1))
    assert not table.record_end(("s1", 1))
    assert table.expired(9.0, machine.map) == [("s2", 1)]
    table.proposal_failed(("s1", 1))
    assert table.record_end(("s1", 1))
