"""A storage node that arrives after the first placement, with and without sessions."""

import pytest

from router.map.commands import (
    Bootstrap,
    Command,
    PlacePartitions,
    RegisterNode,
    SetAdminState,
    SetRebalance,
    StartRebalance,
)
from router.map.late_storage import LateStorage
from router.map.leases import LeaseTable, live_incarnations
from router.map.machine import MapMachine
from router.map.rebalance_run import RebalanceRunner
from router.placement.changes import placement_change
from router.placement.plan import make_plan
from wire.messages.cluster_map import ClusterMap, NodeEntry
from wire.messages.nodes import Heartbeat, RequestChange


class Cluster:
    """A leader's map and leases, with storage nodes that report sizes and promote joining copies."""

    def __init__(self, *names: str, replicas: int = 1, partitions: int = 64) -> None:
        self.machine = MapMachine()
        self.machine.apply(Bootstrap("c", partitions, 4, replicas, 1, 2.0))
        self.leases = LeaseTable(2.0, 0.1)
        self.queue: list[Command] = []
        self.late = LateStorage(self.machine, self.leases, self.queue.append)
        self.runner = RebalanceRunner(self.machine, self.leases, self.queue.append)
        self.now = 0.0
        self.keys: dict[int, int] = {}  # partition -> keys in it
        self.silent: set[str] = set()  # have not reported their sizes
        self.add(*names)

    @property
    def map(self) -> ClusterMap:
        return self.machine.map

    def add(self, *names: str) -> None:
        for name in names:
            assert not self.machine.apply(RegisterNode(NodeEntry(name, "storage", 1, "h:1"))).refusal

    def copies(self) -> dict[str, int]:
        return {name: sum(name in entry.in_sync for entry in self.map.partitions) for name in sorted(self.map.nodes)}

    def run_rounds(self, count: int) -> None:
        """Rounds of a quarter of a second."""
        for _ in range(count):
            self.now += 0.25
            for node, incarnation in live_incarnations(self.map):
                primaries = [at for at, entry in enumerate(self.map.partitions) if entry.primary == node]
                sizes = {at: (self.keys.get(at, 0), 0) for at in primaries if node not in self.silent}
                beat = Heartbeat(node, incarnation, self.now, self.map.epoch, sizes=sizes)
                self.leases.add_heartbeat(node, beat, self.now)
            self.late.check(self.now)
            self.runner.tick(self.now)
            commands, self.queue[:] = list(self.queue), []
            for command in commands:
                assert not self.machine.apply(command).refusal
            for number, placement in enumerate(self.map.partitions):
                assert placement.primary in placement.in_sync
                for node in placement.joining:
                    request = RequestChange(1, number, placement.epoch, "promote_joining", node)
                    entry, _ = placement_change(self.map, placement.primary, request)
                    assert entry is not None
                    self.machine.apply(PlacePartitions({number: entry}))


def test_late_node_gets_its_share_while_no_data_is_stored() -> None:
    """As if it had been present from the start; so does the next late one, then no further move follows."""
    cluster = Cluster("s1")
    cluster.add("s2")
    assert cluster.copies() == {"s1": 64, "s2": 0}
    cluster.run_rounds(60)
    assert min(cluster.copies().values()) > 20
    assert cluster.machine.job is not None and cluster.machine.job.automatic and cluster.machine.job.state == "done"
    cluster.add("s3")
    cluster.run_rounds(60)
    assert min(cluster.copies().values()) > 12 and not make_plan(cluster.map).moves
    epoch = cluster.map.epoch
    cluster.run_rounds(20)
    assert cluster.map.epoch == epoch


def test_sessions_opened_during_the_rebalance_are_kept() -> None:
    """Every move is an ordinary one: the primary is always in sync, and a copy is dropped only after another exists."""
    cluster = Cluster("s1", "s2", replicas=2)
    cluster.add("s3")
    cluster.run_rounds(2)
    cluster.keys = dict.fromkeys(range(64), 5)
    cluster.run_rounds(80)
    assert min(cluster.copies().values()) > 30 and not make_plan(cluster.map).moves


@pytest.mark.parametrize("why", ["a session", "a silent primary", "an operator's job", "an aborted one", "draining"])
def test_late_node_stays_empty_with_data_or_operator_decision(why: str) -> None:
    """Only an operator moves partitions that may be in use, or after an own decision."""
    cluster = Cluster("s1")
    if why == "a session":
        cluster.keys[63] = 1
    elif why == "a silent primary":
        cluster.silent.add("s1")
    elif why == "an operator's job":
        cluster.machine.apply(StartRebalance(make_plan(cluster.map)))
        cluster.run_rounds(1)
    elif why == "an aborted one":
        cluster.machine.apply(StartRebalance(make_plan(cluster.map), automatic=True))
        cluster.machine.apply(SetRebalance(1, "aborting"))
        cluster.run_rounds(1)
    cluster.add("s2")
    if why == "draining":
        cluster.machine.apply(SetAdminState("s2", "draining"))
    cluster.run_rounds(20)
    assert cluster.copies()["s2"] == 0
