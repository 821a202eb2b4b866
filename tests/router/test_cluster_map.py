"""The map's state machine: every command, every end of an incarnation."""

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
        """Apply a command as it comes out of the log; return the refusal."""
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


def test_bootstrap_happens_once() -> None:
    """P, S and the rest are fixed for ever; before it nothing applies."""
    assert "not bootstrapped" in MapMachine().apply(DeclareDead("e1", 1)).refusal
    machine = Machine()
    assert "exists already" in machine.do(Bootstrap("other", 1, 1, 1, 1, 1.0))
    assert (len(machine.map.partitions), machine.map.base_shards) == (8, 8)


def test_an_incarnation_is_registered_once_and_never_again_after_its_end() -> None:
    """A repeated registration changes nothing; one that is over stays over."""
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


def test_a_name_belongs_to_one_tier() -> None:
    """An edge does not become a router."""
    machine = Machine()
    machine.register("e1")
    assert "is a edge" in machine.do(RegisterNode(NodeEntry("e1", "router", 9, "h:1")))


def test_the_next_incarnation_keeps_the_longer_fence_time() -> None:
    """The former one may serve on; a router that begins with this map knows of no other (docs/revocation.md, C5)."""
    machine = Machine()
    for incarnation, fence_close_s, kept in ((1, 60.0, 60.0), (2, 1.0, 60.0), (3, 90.0, 90.0)):
        entry = NodeEntry("e1", "edge", incarnation, "h:1", fence_close_s=fence_close_s)
        assert not machine.do(RegisterNode(entry))
        assert machine.map.nodes["e1"].fence_close_s == kept


def test_death_is_of_one_incarnation() -> None:
    """A late declaration does not hit the next incarnation; a repeated one changes nothing."""
    machine = Machine()
    machine.register("e1", 2)
    assert "not at incarnation" in machine.do(DeclareDead("e1", 1))
    machine.do(DeclareDead("e1", 2))
    assert machine.map.nodes["e1"].state == NodeState.DEAD
    assert machine.do(DeclareDead("e1", 2)) == ""


def test_partitions_are_placed_when_there_are_as_many_nodes_as_copies() -> None:
    """All copies empty, and therefore in sync."""
    machine = with_storage("s1")
    assert machine.placement().epoch == 0
    machine.register("s2")
    assert all(set(entry.in_sync) == {"s1", "s2"} and entry.epoch == 1 for entry in machine.map.partitions)


def test_a_dead_primary_is_followed_by_a_live_replica_in_sync() -> None:
    """And by nobody else."""
    machine = with_storage("s1", "s2", "s3")
    number = next(at for at, entry in enumerate(machine.map.partitions) if entry.primary == "s1")
    heir = next(name for name in machine.map.partitions[number].in_sync if name != "s1")
    machine.do(DeclareDead("s1", 1))
    after = machine.map.partitions[number]
    assert (after.primary, after.in_sync, after.epoch) == (heir, (heir,), 2)


def test_the_heirs_of_a_dead_primary_take_turns() -> None:
    """Otherwise one node is the primary of everything after a few deaths, and its own interrupts everybody."""
    machine = with_storage("s1", "s2", "s3", replicas=3)
    assert not machine.do(
        PlacePartitions({at: PartitionEntry(2, "s1", ("s1", "s2", "s3")) for at in range(len(machine.map.partitions))})
    )
    machine.do(DeclareDead("s1", 1))
    assert Counter(entry.primary for entry in machine.map.partitions) == {"s2": 4, "s3": 4}


def test_heirs_take_turns_when_a_primary_is_back_before_its_lease_is_over() -> None:
    """Its partitions went to the first of the others, all of them."""
    machine = with_storage("s1", "s2", "s3", replicas=3)
    assert not machine.do(
        PlacePartitions({at: PartitionEntry(2, "s1", ("s1", "s2", "s3")) for at in range(len(machine.map.partitions))})
    )
    machine.register("s1", 2)
    assert Counter(entry.primary for entry in machine.map.partitions) == {"s2": 4, "s3": 4}


def test_changes_of_one_round_are_one_step_and_each_stands_for_itself() -> None:
    """Every partition with a copy on a dead node asks at once; one that another change overtook does not stop them."""
    machine = with_storage("s1", "s2")
    before, epoch = machine.placement(), machine.map.epoch
    fitting = PartitionEntry(2, "s1", ("s1",))
    assert machine.do(PlacePartitions({0: PartitionEntry(8, "s1", ("s1",)), 1: fitting, 2: fitting}, each=True)) == ""
    assert (machine.placement(), machine.map.epoch) == (before, epoch + 1)
    assert machine.map.partitions[1] == machine.map.partitions[2] == fitting


def test_the_last_replica_in_sync_is_never_dropped() -> None:
    """D2: its name stays; without it there is no primary, and a whole store makes it one again."""
    machine = with_storage("s1", "s2")
    machine.do(DeclareDead("s1", 1))
    machine.do(DeclareDead("s2", 1))
    assert (machine.placement().primary, machine.placement().in_sync) == ("", ("s2",))
    machine.register("s1", 2)  # was dropped: not in sync any more
    assert machine.placement().primary == ""
    machine.register("s2", 2, whole=True)
    assert (machine.placement().primary, machine.placement().in_sync) == ("s2", ("s2",))


def test_a_store_that_is_not_whole_is_no_primary() -> None:
    """It lost what it acknowledged; better no service than a lie."""
    machine = with_storage("s1", replicas=1)
    machine.do(DeclareDead("s1", 1))
    machine.register("s1", 2, whole=False)
    assert (machine.placement().primary, machine.placement().in_sync) == ("", ())
    machine.register("s1", 3)  # whole as of its second incarnation, which held nothing
    assert machine.placement().primary == ""


def test_a_lost_store_is_no_heir_of_the_whole_ones() -> None:
    """All nodes lost power, one its disk too: the first to return, alone and empty, was the heir of the second."""
    machine = with_storage("s1", "s2")
    machine.do(DeclareDead("s2", 1))
    machine.do(PlacePartitions({0: PartitionEntry(machine.placement().epoch + 1, "s1", ("s1", "s2"))}))
    machine.do(DeclareDead("s1", 1))
    machine.register("s2", 2, whole=False)
    assert (machine.placement().primary, machine.placement().in_sync) == ("", ("s1",))
    machine.register("s1", 2)
    assert (machine.placement().primary, machine.placement().in_sync) == ("s1", ("s1",))


def three_copies() -> Machine:
    """Return three nodes that hold everything, two of which must be in sync; s1 is the primary."""
    machine = with_storage("s1", "s2", "s3", replicas=3, min_in_sync=2)
    placed = {at: PartitionEntry(2, "s1", ("s1", "s2", "s3")) for at in range(len(machine.map.partitions))}
    assert not machine.do(PlacePartitions(placed))
    return machine


def test_the_dead_stay_in_sync_while_fewer_than_the_minimum_live() -> None:
    """Nothing is acknowledged meanwhile; with enough of them alive again the others are struck off."""
    machine = three_copies()
    machine.do(DeclareDead("s2", 1))
    assert machine.placement().in_sync == ("s1", "s3")
    machine.do(DeclareDead("s3", 1))
    assert (machine.placement().primary, machine.placement().in_sync) == ("s1", ("s1", "s3"))
    machine.register("s2", 2)  # the others could acknowledge without it: not in sync any more
    assert machine.placement().in_sync == ("s1", "s3")
    machine.register("s3", 2, whole=True)
    assert (machine.placement().primary, machine.placement().in_sync) == ("s1", ("s1", "s3"))


def test_the_last_one_standing_loses_its_disk() -> None:
    """Simulation seed 40092: the copies of those that were dead then are whole, and one of them goes on."""
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


def test_a_copy_may_be_made_anew_though_too_few_are_left() -> None:
    """It applied what was never acknowledged, and would neither be of use nor go away."""
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


def test_a_replica_that_joins_takes_the_place_of_the_dead() -> None:
    machine = three_copies()
    machine.do(DeclareDead("s2", 1))
    machine.do(DeclareDead("s3", 1))
    machine.register("s2", 2)
    placement = machine.placement()
    joining = PartitionEntry(placement.epoch + 1, "s1", placement.in_sync, ("s2",))
    assert not machine.do(PlacePartitions({0: joining}))
    request = RequestChange(1, 0, joining.epoch, "promote_joining", "s2")
    assert placement_change(machine.map, "s1", request) == (PartitionEntry(joining.epoch + 1, "s1", ("s1", "s2")), "")


def test_both_copies_lost_their_lease_and_come_back_whole() -> None:
    """The first to return whole serves; the other catches up."""
    machine = with_storage("s1", "s2")
    placed = {number: PartitionEntry(2, "s1", ("s1", "s2")) for number in range(8)}
    machine.do(PlacePartitions(placed))
    machine.do(DeclareDead("s2", 1))
    machine.do(DeclareDead("s1", 1))
    machine.register("s1", 2)
    assert machine.placement().primary == "s1"


def test_a_restarted_replica_catches_up_beside_a_living_one() -> None:
    """A new incarnation resumes no role under an old partition_epoch."""
    machine = with_storage("s1", "s2")
    former = list(machine.map.partitions)
    machine.register("s1", 2)
    for entry, before in zip(machine.map.partitions, former, strict=True):
        if before.primary == "s1":  # it may have applied what nobody else has
            assert (entry.primary, entry.in_sync, entry.joining) == ("s2", ("s2",), ("s1",))
        else:
            assert (entry.primary, entry.in_sync, entry.joining) == ("s2", before.in_sync, ())
        assert entry.epoch == before.epoch + 1
    machine.register("s1", 3)
    assert all(entry.joining == () for entry in machine.map.partitions)


def test_restarts_of_all_replicas_at_once_leave_more_than_one_in_sync() -> None:
    """Damage that is then found on the disk of the last one was the end of the partition."""
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
    """A stale epoch, an unknown partition, a lost last replica: refused, and nothing changes."""
    machine = with_storage("s1", "s2")
    before = machine.placement()
    assert "is at epoch 1, not 7" in machine.do(PlacePartitions({0: PartitionEntry(8, "s1", ("s1",))}))
    assert "no partition 99" in machine.do(PlacePartitions({99: PartitionEntry(1, "s1", ("s1",))}))
    assert "last replica" in machine.do(PlacePartitions({0: PartitionEntry(2, "", ())}))
    assert "not in sync" in machine.do(PlacePartitions({0: PartitionEntry(2, "s9", ("s1",))}))
    assert machine.placement() == before
    assert machine.do(PlacePartitions({0: PartitionEntry(2, "s1", ("s1",))})) == ""


def test_a_router_that_starts_owns_nothing_of_its_former_incarnation() -> None:
    """A5: every shard it had goes on at the next shard_epoch, to whomever."""
    machine = Machine()
    for name in ("r1", "r2", "r3"):
        machine.register(name)
    owned = {number: shard.epoch for number, shard in enumerate(machine.map.shards) if shard.owner == "r1"}
    assert owned
    machine.register("r1", 2)
    assert all(machine.map.shards[number].epoch > epoch for number, epoch in owned.items())


def test_shards_of_a_dead_router_go_on_elsewhere() -> None:
    """And only those move."""
    machine = Machine()
    machine.register("r1")
    machine.register("r2")
    before = list(machine.map.shards)
    machine.do(DeclareDead("r1", 1))
    for old, new in zip(before, machine.map.shards, strict=True):
        assert new == old if old.owner == "r2" else (new.owner, new.epoch) == ("r2", old.epoch + 1)


def test_shards_are_placed_by_hand_at_known_epochs() -> None:
    """All or none."""
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
    """A1: it is handled as a new owner; a pinned prefix is a shard of its own."""
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
def test_bad_commands_say_why(command: Command, why: str) -> None:
    """One line, and nothing changed."""
    machine = Machine()
    machine.register("r1")
    assert why in machine.do(command)


def test_a_node_is_forgotten_when_it_is_dead_and_holds_nothing() -> None:
    """The only copy of a partition is never forgotten."""
    machine = with_storage("s1", replicas=1)
    machine.register("e1")
    assert "is alive" in machine.do(ForgetNode("e1"))
    machine.do(DeclareDead("e1", 1))
    assert machine.do(ForgetNode("e1")) == ""
    assert "e1" not in machine.map.nodes
    machine.do(DeclareDead("s1", 1))
    assert "still holds partition" in machine.do(ForgetNode("s1"))


def test_a_snapshot_is_the_whole_state() -> None:
    """Another machine goes on from it."""
    machine = with_storage("s1", "s2")
    other = MapMachine()
    other.restore(machine.machine.snapshot())
    assert other.map == machine.map
    assert other.apply(DeclareDead("s1", 1)).delta == machine.machine.apply(DeclareDead("s1", 1)).delta
