"""The map's state machine: every command, and every kind of end of an incarnation."""

from collections import Counter

import pytest

from router.map.commands import (
    Bootstrap,
    Command,
    DeclareDead,
    Delegate,
    ForgetNode,
    PlacePartitions,
    PlaceShards,
    RegisterNode,
    SetAdminState,
    decode_command,
    encode_command,
)
from router.map.machine import MapMachine
from router.placement.changes import placement_change
from wire.messages.cluster_map import NodeEntry, NodeState, PartitionEntry
from wire.messages.nodes import RequestChange


class Machine:
    """A bootstrapped machine."""

    def __init__(self, replicas: int = 2, partitions: int = 8, min_in_sync: int = 1) -> None:
        self.machine = MapMachine()
        self.machine.apply(Bootstrap("c", partitions, 8, replicas, min_in_sync, 2.0))
        self.map = self.machine.map

    def do(self, command: Command) -> str:
        """Apply a command in its encoded form; return the refusal."""
        before = self.map.epoch
        outcome = self.machine.apply(decode_command(encode_command(command)))
        self.map = self.machine.map
        assert self.map.epoch == before + (outcome.delta is not None)
        return outcome.refusal

    def register(self, node: str, incarnation: int = 1, *, whole: bool = True) -> str:
        tier = {"r": "router", "s": "storage", "e": "edge"}[node[0]]
        return self.do(RegisterNode(NodeEntry(node, tier, incarnation, "host:1"), whole))

    def placement(self) -> PartitionEntry:
        """Return partition 0."""
        return self.map.partitions[0]


def with_storage(*names: str, replicas: int = 2, min_in_sync: int = 1) -> Machine:
    machine = Machine(replicas, min_in_sync=min_in_sync)
    for name in names:
        assert machine.register(name) == ""
    return machine


def test_bootstrap_applies_once() -> None:
    """Before it no other command applies."""
    assert "not bootstrapped" in MapMachine().apply(DeclareDead("e1", 1)).refusal
    machine = Machine()
    assert "exists already" in machine.do(Bootstrap("other", 1, 1, 1, 1, 1.0))
    assert (len(machine.map.partitions), machine.map.base_shards) == (8, 8)


def test_register_ended_incarnation_is_refused() -> None:
    """A repeated registration changes nothing; an ended incarnation is refused."""
    machine = Machine()
    assert machine.register("e1", 5) == ""
    epoch = machine.map.epoch
    assert machine.register("e1", 5) == ""
    assert machine.map.epoch == epoch
    assert "is over" in machine.register("e1", 4)
    assert machine.do(DeclareDead("e1", 5)) == ""
    assert "is over" in machine.register("e1", 5)
    assert machine.register("e1", 6) == ""
    assert machine.map.is_alive("e1", 6)


def test_register_under_another_tier_is_refused() -> None:
    machine = Machine()
    machine.register("e1")
    assert "is a edge" in machine.do(RegisterNode(NodeEntry("e1", "router", 9, "h:1")))


def test_register_keeps_the_longer_fence_time() -> None:
    """The former incarnation may still serve, and no later map shows its fence time (docs/revocation.md, C5)."""
    machine = Machine()
    for incarnation, fence_close_s, kept in ((1, 60.0, 60.0), (2, 1.0, 60.0), (3, 90.0, 90.0)):
        entry = NodeEntry("e1", "edge", incarnation, "h:1", fence_close_s=fence_close_s)
        assert not machine.do(RegisterNode(entry))
        assert machine.map.nodes["e1"].fence_close_s == kept


def test_declare_dead_applies_to_one_incarnation() -> None:
    """A late declaration does not affect the next incarnation; a repeated one changes nothing."""
    machine = Machine()
    machine.register("e1", 2)
    assert "not at incarnation" in machine.do(DeclareDead("e1", 1))
    machine.do(DeclareDead("e1", 2))
    assert machine.map.nodes["e1"].state == NodeState.DEAD
    assert machine.do(DeclareDead("e1", 2)) == ""


def test_partitions_are_placed_with_as_many_nodes_as_copies() -> None:
    """All copies are empty, and therefore in sync."""
    machine = with_storage("s1")
    assert machine.placement().epoch == 0
    machine.register("s2")
    assert all(set(entry.in_sync) == {"s1", "s2"} and entry.epoch == 1 for entry in machine.map.partitions)


def test_dead_primary_is_replaced_by_live_in_sync_replica_only() -> None:
    machine = with_storage("s1", "s2", "s3")
    number = next(at for at, entry in enumerate(machine.map.partitions) if entry.primary == "s1")
    heir = next(name for name in machine.map.partitions[number].in_sync if name != "s1")
    machine.do(DeclareDead("s1", 1))
    after = machine.map.partitions[number]
    assert (after.primary, after.in_sync, after.epoch) == (heir, (heir,), 2)


def test_primaries_of_a_dead_node_are_spread_over_the_others() -> None:
    """Otherwise one node would get all primaries after a few deaths."""
    machine = with_storage("s1", "s2", "s3", replicas=3)
    assert not machine.do(
        PlacePartitions({at: PartitionEntry(2, "s1", ("s1", "s2", "s3")) for at in range(len(machine.map.partitions))})
    )
    machine.do(DeclareDead("s1", 1))
    assert Counter(entry.primary for entry in machine.map.partitions) == {"s2": 4, "s3": 4}


def test_primaries_are_spread_when_a_node_restarts_within_its_lease() -> None:
    """Regression: all its partitions went to the first of the others."""
    machine = with_storage("s1", "s2", "s3", replicas=3)
    assert not machine.do(
        PlacePartitions({at: PartitionEntry(2, "s1", ("s1", "s2", "s3")) for at in range(len(machine.map.partitions))})
    )
    machine.register("s1", 2)
    assert Counter(entry.primary for entry in machine.map.partitions) == {"s2": 4, "s3": 4}


def test_place_partitions_skips_stale_entries_only() -> None:
    """Every partition with a copy on a dead node sends a request at once; a stale one must not block the others."""
    machine = with_storage("s1", "s2")
    before, epoch = machine.placement(), machine.map.epoch
    fitting = PartitionEntry(2, "s1", ("s1",))
    assert machine.do(PlacePartitions({0: PartitionEntry(8, "s1", ("s1",)), 1: fitting, 2: fitting}, each=True)) == ""
    assert (machine.placement(), machine.map.epoch) == (before, epoch + 1)
    assert machine.map.partitions[1] == machine.map.partitions[2] == fitting


def test_last_in_sync_replica_is_never_dropped() -> None:
    """D2: its name stays; without it there is no primary, and a whole store makes it primary again."""
    machine = with_storage("s1", "s2")
    machine.do(DeclareDead("s1", 1))
    machine.do(DeclareDead("s2", 1))
    assert (machine.placement().primary, machine.placement().in_sync) == ("", ("s2",))
    machine.register("s1", 2)  # was dropped, so it is not in sync
    assert machine.placement().primary == ""
    machine.register("s2", 2, whole=True)
    assert (machine.placement().primary, machine.placement().in_sync) == ("s2", ("s2",))


def test_incomplete_store_does_not_become_primary() -> None:
    """It lost acknowledged operations, so the partition stays unavailable."""
    machine = with_storage("s1", replicas=1)
    machine.do(DeclareDead("s1", 1))
    machine.register("s1", 2, whole=False)
    assert (machine.placement().primary, machine.placement().in_sync) == ("", ())
    machine.register("s1", 3)  # whole since its second incarnation, which stored nothing
    assert machine.placement().primary == ""


def test_lost_store_does_not_succeed_whole_stores() -> None:
    """All nodes lose power and one its disk: the first to return, alone and empty, must not succeed the second."""
    machine = with_storage("s1", "s2")
    machine.do(DeclareDead("s2", 1))
    machine.do(PlacePartitions({0: PartitionEntry(machine.placement().epoch + 1, "s1", ("s1", "s2"))}))
    machine.do(DeclareDead("s1", 1))
    machine.register("s2", 2, whole=False)
    assert (machine.placement().primary, machine.placement().in_sync) == ("", ("s1",))
    machine.register("s1", 2)
    assert (machine.placement().primary, machine.placement().in_sync) == ("s1", ("s1",))


def three_copies() -> Machine:
    """Return three nodes with all partitions, of which two must be in sync; s1 is the primary."""
    machine = with_storage("s1", "s2", "s3", replicas=3, min_in_sync=2)
    placed = {at: PartitionEntry(2, "s1", ("s1", "s2", "s3")) for at in range(len(machine.map.partitions))}
    assert not machine.do(PlacePartitions(placed))
    return machine


def test_dead_replicas_stay_in_sync_below_the_minimum() -> None:
    """Meanwhile no operation is acknowledged. With enough live replicas the dead ones are dropped."""
    machine = three_copies()
    machine.do(DeclareDead("s2", 1))
    assert machine.placement().in_sync == ("s1", "s3")
    machine.do(DeclareDead("s3", 1))
    assert (machine.placement().primary, machine.placement().in_sync) == ("s1", ("s1", "s3"))
    machine.register("s2", 2)  # the others could acknowledge without it, so it is not in sync
    assert machine.placement().in_sync == ("s1", "s3")
    machine.register("s3", 2, whole=True)
    assert (machine.placement().primary, machine.placement().in_sync) == ("s1", ("s1", "s3"))


def test_dead_whole_copy_serves_after_the_last_live_one_lost_its_disk() -> None:
    """Simulation seed 40092: copies that were dead then are whole, and one of them serves."""
    machine = three_copies()
    machine.do(DeclareDead("s2", 1))
    machine.do(DeclareDead("s3", 1))
    machine.do(DeclareDead("s1", 1))
    machine.register("s1", 2, whole=False)
    placement = machine.placement()
    assert (placement.primary, placement.in_sync, placement.joining) == ("", ("s3",), ("s1",))
    machine.register("s3", 2, whole=True)
    placement = machine.placement()
    assert (placement.primary, placement.in_sync, placement.joining) == ("s3", ("s3",), ("s1",))


def test_replace_copy_is_allowed_below_the_minimum() -> None:
    """The copy applied unacknowledged operations, so it must be rebuilt."""
    machine = three_copies()
    machine.do(DeclareDead("s2", 1))
    machine.do(DeclareDead("s1", 1))
    machine.register("s1", 2, whole=True)
    placement = machine.placement()
    assert (placement.primary, set(placement.in_sync)) == ("s3", {"s1", "s3"})

    def asked(verb: str) -> tuple[PartitionEntry | None, str]:
        return placement_change(machine.map, "s3", RequestChange(1, 0, placement.epoch, verb, "s1"))

    assert "fewer than 2" in asked("drop_backup")[1]
    assert asked("replace_copy") == (PartitionEntry(placement.epoch + 1, "s3", ("s3",), ("s1",)), "")


def test_joining_replica_replaces_the_dead_one() -> None:
    machine = three_copies()
    machine.do(DeclareDead("s2", 1))
    machine.do(DeclareDead("s3", 1))
    machine.register("s2", 2)
    placement = machine.placement()
    joining = PartitionEntry(placement.epoch + 1, "s1", placement.in_sync, ("s2",))
    assert not machine.do(PlacePartitions({0: joining}))
    request = RequestChange(1, 0, joining.epoch, "promote_joining", "s2")
    assert placement_change(machine.map, "s1", request) == (PartitionEntry(joining.epoch + 1, "s1", ("s1", "s2")), "")


def test_first_whole_copy_to_return_becomes_primary() -> None:
    """The other one catches up."""
    machine = with_storage("s1", "s2")
    placed = {number: PartitionEntry(2, "s1", ("s1", "s2")) for number in range(8)}
    machine.do(PlacePartitions(placed))
    machine.do(DeclareDead("s2", 1))
    machine.do(DeclareDead("s1", 1))
    machine.register("s1", 2)
    assert machine.placement().primary == "s1"


def test_restarted_replica_catches_up_beside_a_live_one() -> None:
    """A new incarnation resumes no role of an old partition_epoch."""
    machine = with_storage("s1", "s2")
    former = list(machine.map.partitions)
    machine.register("s1", 2)
    for entry, before in zip(machine.map.partitions, former, strict=True):
        if before.primary == "s1":  # it may have applied operations that no other replica has
            assert (entry.primary, entry.in_sync, entry.joining) == ("s2", ("s2",), ("s1",))
        else:
            assert (entry.primary, entry.in_sync, entry.joining) == ("s2", before.in_sync, ())
        assert entry.epoch == before.epoch + 1
    machine.register("s1", 3)
    assert all(entry.joining == () for entry in machine.map.partitions)


def test_simultaneous_restarts_leave_several_replicas_in_sync() -> None:
    """Otherwise later damage on the last one's disk would lose the partition."""
    machine = with_storage("s1", "s2", "s3", replicas=3)
    first = machine.placement().primary
    others = [name for name in ("s1", "s2", "s3") if name != first]
    machine.register(first, 2)
    heir = machine.placement().primary
    machine.register(next(name for name in others if name != heir), 2)
    assert set(machine.placement().in_sync) == set(others)
    machine.register(heir, 2, whole=False)
    assert machine.placement().primary == next(name for name in others if name != heir)


def test_placements_are_compare_and_set() -> None:
    """A stale epoch, an unknown partition and a lost last replica are refused without a change."""
    machine = with_storage("s1", "s2")
    before = machine.placement()
    assert "is at epoch 1, not 7" in machine.do(PlacePartitions({0: PartitionEntry(8, "s1", ("s1",))}))
    assert "no partition 99" in machine.do(PlacePartitions({99: PartitionEntry(1, "s1", ("s1",))}))
    assert "last replica" in machine.do(PlacePartitions({0: PartitionEntry(2, "", ())}))
    assert "not in sync" in machine.do(PlacePartitions({0: PartitionEntry(2, "s9", ("s1",))}))
    assert machine.placement() == before
    assert machine.do(PlacePartitions({0: PartitionEntry(2, "s1", ("s1",))})) == ""


def test_restarted_router_owns_no_shard_of_its_former_incarnation() -> None:
    """A5: every former shard gets an owner at the next shard_epoch."""
    machine = Machine()
    for name in ("r1", "r2", "r3"):
        machine.register(name)
    owned = {number: shard.epoch for number, shard in enumerate(machine.map.shards) if shard.owner == "r1"}
    assert owned
    machine.register("r1", 2)
    assert all(machine.map.shards[number].epoch > epoch for number, epoch in owned.items())


def test_shards_of_a_dead_router_move_to_others() -> None:
    """No other shard moves."""
    machine = Machine()
    machine.register("r1")
    machine.register("r2")
    before = list(machine.map.shards)
    machine.do(DeclareDead("r1", 1))
    for old, new in zip(before, machine.map.shards, strict=True):
        assert new == old if old.owner == "r2" else (new.owner, new.epoch) == ("r2", old.epoch + 1)


def test_place_shards_requires_the_named_epochs() -> None:
    """All shards or none."""
    machine = Machine()
    machine.register("r1")
    machine.register("r2")
    machine.register("e1")
    assert "not a live router" in machine.do(PlaceShards({0: "e1"}))
    assert "no shard" in machine.do(PlaceShards({800: "r1"}))
    epoch = machine.map.shards[0].epoch
    assert "is at epoch" in machine.do(PlaceShards({1: "r1", 0: "r1"}, {0: epoch + 4}))
    assert machine.do(PlaceShards({0: "r2"}, {0: epoch})) == ""
    assert machine.map.shards[0].epoch == epoch + 1


def test_a_delegation_raises_every_shard_epoch() -> None:
    """A1: it counts as a new owner; a pinned prefix has its own shard."""
    machine = Machine()
    machine.register("r1")
    epochs = [shard.epoch for shard in machine.map.shards]
    assert machine.do(Delegate("devices", 2)) == ""
    assert [shard.epoch for shard in machine.map.shards] == [epoch + 1 for epoch in epochs]
    assert machine.do(Delegate("plant-7/line-1", 2, "r1")) == ""
    assert machine.map.shard_for_topic("plant-7/line-1/x") == 8
    assert machine.map.shards_for_filter("plant-7/#") == list(range(9))
    assert machine.map.shards[8].owner == "r1"
    assert machine.do(Delegate("plant-7/line-1", 0)) == ""
    assert machine.map.shard_for_topic("plant-7/line-1/x") < 8


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (Delegate("a/+", 2), "not a topic prefix"),
        (Delegate("a/b", 1), "less than the 2 levels"),
        (Delegate("a", 1, "e9"), "not a live router"),
        (Delegate("a", 0), "no delegation"),
        (SetAdminState("x", "draining"), "unknown node"),
        (ForgetNode("x"), "unknown node"),
    ],
)
def test_invalid_command_is_refused_with_reason(command: Command, why: str) -> None:
    """One line, without a change."""
    machine = Machine()
    machine.register("r1")
    assert why in machine.do(command)


def test_forget_node_requires_a_dead_node_without_roles() -> None:
    """The only copy of a partition is never removed."""
    machine = with_storage("s1", replicas=1)
    machine.register("e1")
    assert "is alive" in machine.do(ForgetNode("e1"))
    machine.do(DeclareDead("e1", 1))
    assert machine.do(ForgetNode("e1")) == ""
    assert "e1" not in machine.map.nodes
    machine.do(DeclareDead("s1", 1))
    assert "still holds partition" in machine.do(ForgetNode("s1"))


def test_snapshot_restores_the_whole_state() -> None:
    machine = with_storage("s1", "s2")
    other = MapMachine()
    other.restore(machine.machine.snapshot())
    assert other.map == machine.map
    assert other.apply(DeclareDead("s1", 1)).delta == machine.machine.apply(DeclareDead("s1", 1)).delta
