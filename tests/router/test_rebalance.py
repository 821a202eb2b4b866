"""Plans, their steps, and their execution by the leader."""

import random

import pytest

from router.map.commands import (
    Bootstrap,
    Command,
    DeclareDead,
    PlacePartitions,
    PlaceShards,
    RegisterNode,
    SetAdminState,
    SetRebalance,
    StartRebalance,
)
from router.map.leases import LeaseTable, live_incarnations
from router.map.machine import MapMachine
from router.map.rebalance_run import RebalanceRunner, reached
from router.operators.ring_commands import plan as plan_of
from router.placement.changes import placement_change
from router.placement.plan import RebalancePlan, make_plan
from wire.messages.cluster_map import NodeEntry
from wire.messages.nodes import Heartbeat, RequestChange

TIERS = {"r": "router", "s": "storage", "e": "edge"}


class Group:
    """A machine, its leader's runner, and primaries that promote joining copies."""

    def __init__(self, *names: str, replicas: int = 2, partitions: int = 16) -> None:
        self.machine = MapMachine()
        self.machine.apply(Bootstrap("c", partitions, 16, replicas, 1, 2.0))
        self.now = 0.0
        self.refused: list[str] = []
        self.starts: list[float] = []
        for name in names:
            self.register(name)
        self.lead()

    @property
    def map(self):  # type: ignore[no-untyped-def]
        return self.machine.map

    def register(self, name: str, incarnation: int = 1) -> None:
        self.do(RegisterNode(NodeEntry(name, TIERS[name[0]], incarnation, "host:1")))

    def do(self, command: Command) -> str:
        refusal = self.machine.apply(command).refusal
        if refusal:
            self.refused.append(refusal)
        return refusal

    def lead(self) -> None:
        """Replace the leader; its predecessor's memory is lost."""
        self.leases = LeaseTable(2.0, 0.1)
        self.queue: list[Command] = []
        self.runner = RebalanceRunner(self.machine, self.leases, self.queue.append)

    def start(self, throttle: int = 0, sizes: int = 0) -> str:
        count = len(self.map.partitions)
        plan = make_plan(self.map, dict.fromkeys(range(count), (1, sizes)))
        return self.do(StartRebalance(plan, throttle))

    def run_round(self, *, promote: bool = True) -> None:
        """Run a round: heartbeats acknowledge the map, the runner proposes, commands commit, primaries promote."""
        self.now += 0.1
        for node, incarnation in live_incarnations(self.map):
            self.leases.add_heartbeat(node, Heartbeat(node, incarnation, self.now, self.map.epoch), self.now)
        self.runner.tick(self.now)
        commands, self.queue[:] = list(self.queue), []
        for command in commands:
            before = self.copies()
            self.do(command)
            if self.copies() > before:
                self.starts.append(self.now)
            self.check()
        for number, placement in enumerate(self.map.partitions) if promote else ():
            for node in placement.joining:
                request = RequestChange(1, number, placement.epoch, "promote_joining", node)
                entry, _ = placement_change(self.map, placement.primary, request)
                if entry is not None:
                    self.do(PlacePartitions({number: entry}))
                break

    def copies(self) -> int:
        return sum(len(placement.joining) for placement in self.map.partitions)

    def check(self) -> None:
        """Every primary is in sync, and every partition has a copy."""
        for placement in self.map.partitions:
            assert not placement.epoch or placement.primary in placement.in_sync

    def balance(self) -> "Group":
        """Execute the plan after the first placement on just enough nodes."""
        if make_plan(self.map).moves:
            self.start()
            assert self.run(2000) == "done"
        return self

    def run(self, turns: int = 400) -> str:
        for _ in range(turns):
            self.run_round()
            job = self.machine.job
            assert job is not None
            if job.state in ("done", "failed", "aborted"):
                return job.state
        raise AssertionError(f"not finished: {self.runner.status(self.now)}")


def test_balanced_map_has_an_empty_plan() -> None:
    """The map has the ring's proposal."""
    assert make_plan(Group("r1", "r2", "r3", "s1", "s2", "s3").balance().map).moves == ()


def test_a_plan_counts_the_partitions_that_keep_fewer_copies() -> None:
    """With as many storage nodes as copies, no other node can take those of a drained one."""
    group = Group("r1", "s1", "s2").balance()
    described = plan_of(group.map, ({}, {}), {"drain": ["s1"], "add": []})
    assert described["partitions_under_replicated"] == len(group.map.partitions)
    group.register("s3")
    described = plan_of(group.map, ({}, {}), {"drain": ["s1"], "add": []})
    assert described["partitions_under_replicated"] == 0


@pytest.mark.parametrize("count", [2, 3, 5])
def test_new_node_moves_at_most_its_share(count: int) -> None:
    """At most 1.2 / (N + 1) of the replica slots; primaries among the same replicas are listed separately."""
    group = Group(*(f"s{number}" for number in range(count)), partitions=256).balance()
    group.register("s9")
    plan = make_plan(group.map)
    assert 0 < plan.slots_moved <= 1.2 / (count + 1) * plan.slots
    assert all(move.target == ("s9",) for move in plan.moves if move.kind == "partition")
    assert all(move.source != move.target for move in plan.moves if move.kind == "primary")


def test_rebalance_reaches_its_plan() -> None:
    """Copies are added, catch up, take over and are dropped, in this order; verify reports no problem."""
    group = Group("r1", "s1", "s2")
    group.register("s3")
    assert group.start() == ""
    assert group.run() == "done"
    assert all(reached(group.map, move) for move in group.machine.job.plan.moves)  # type: ignore[union-attr]
    assert make_plan(group.map).moves == ()
    assert group.refused == []


def test_shards_move_in_batches_that_settle() -> None:
    """A batch starts when every live node has acknowledged the previous one."""
    group = Group("r1", "r2")
    group.do(PlaceShards(dict.fromkeys(range(16), "r1")))
    group.start()
    lots = []
    while group.machine.job.state == "running":  # type: ignore[union-attr]
        before = [shard.owner for shard in group.map.shards]
        group.run_round()
        lots.append(sum(1 for old, new in zip(before, group.map.shards, strict=True) if old != new.owner))
    assert sum(lots) == 8 and max(lots) <= 8
    assert make_plan(group.map).moves == ()


@pytest.mark.parametrize("seed", range(5))
def test_leader_change_does_not_affect_a_rebalance(seed: int) -> None:
    """The job is in the log, its progress in the map."""
    rng = random.Random(seed)
    group = Group("r1", "s1", "s2", "s3")
    group.do(SetAdminState("s1", "draining"))
    group.start()
    for _ in range(400):
        if rng.random() < 0.2:
            group.lead()
        group.run_round()
        if group.machine.job.state == "done":  # type: ignore[union-attr]
            break
    assert all("s1" not in placement.in_sync for placement in group.map.partitions)
    assert make_plan(group.map).moves == ()


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8])
def test_abort_leaves_the_old_or_the_new_placement(turns: int) -> None:
    """At any time: every partition has as many copies as before, none of them joining."""
    group = Group("r1", "s1", "s2")
    before = [set(placement.in_sync) for placement in group.map.partitions]
    group.register("s3")
    group.start()
    for number in range(turns):
        group.run_round(promote=number % 2 == 0)
    group.do(SetRebalance(1, "aborting"))
    assert group.run() == "aborted"
    plan = {move.number: set(move.replicas) for move in group.machine.job.plan.moves}  # type: ignore[union-attr]
    for number, placement in enumerate(group.map.partitions):
        assert set(placement.in_sync) in (before[number], plan.get(number))
        assert placement.joining == ()


def test_pause_starts_no_move_until_resume() -> None:
    group = Group("r1", "s1", "s2")
    group.register("s3")
    group.start()
    group.do(SetRebalance(1, "paused"))
    epoch = group.map.epoch
    for _ in range(5):
        group.run_round()
    assert group.map.epoch == epoch
    assert "cannot become paused" in group.do(SetRebalance(1, "paused"))
    group.do(SetRebalance(1, "running"))
    assert group.run() == "done"


def test_dead_target_ends_the_job_with_the_completed_moves() -> None:
    """Its incomplete copies are removed; a new plan continues."""
    group = Group("r1", "s1", "s2")
    group.register("s3")
    group.start()
    group.run_round(promote=False)
    assert group.copies()
    group.do(DeclareDead("s3", 1))
    assert group.run() == "failed"
    assert group.copies() == 0
    assert make_plan(group.map).moves == ()


def test_throttle_spreads_the_copies_over_time() -> None:
    """1 000 bytes at 2 000 bytes/s: two copies start per second."""
    group = Group("r1", "s1", "s2")
    group.register("s3")
    group.start(throttle=2000, sizes=1000)
    assert group.run() == "done"
    assert len(group.starts) > 4
    assert (group.starts[-1] - group.starts[0]) / (len(group.starts) - 1) > 0.45


def test_plan_of_another_epoch_is_refused() -> None:
    """With one line, and no job."""
    group = Group("r1", "s1", "s2")
    group.register("s3")
    plan = make_plan(group.map)
    group.register("e1")
    assert "plan again" in group.do(StartRebalance(plan))
    assert group.machine.job is None
    assert group.start() == ""
    assert "wait for it" in group.start()


def test_job_is_part_of_the_snapshot() -> None:
    """A router that starts from a snapshot can lead it."""
    group = Group("r1", "s1", "s2")
    group.register("s3")
    group.start()
    other = MapMachine()
    other.restore(group.machine.snapshot())
    assert other.job == group.machine.job


def test_uncommitted_end_of_a_job_is_proposed_again() -> None:
    """Its leader lost and regained leadership: without a repeat the job would never end."""
    group = Group("s1", "s2").balance()
    group.do(StartRebalance(RebalancePlan(group.map.epoch)))
    for second in range(4):
        group.runner.tick(group.now + second)
    assert [command.state for command in group.queue if isinstance(command, SetRebalance)] == ["done", "done"]
