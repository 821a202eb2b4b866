"""Nodes with many partitions: idle ones cost no time, and no iteration does the work of all of them."""

from collections.abc import Iterable

import pytest

from storage.hosting import placements
from storage.hosting.deadlines import Deadlines
from storage.hosting.hosted_partition import HostedPartition
from storage.hosting.placements import Placements
from storage.replication.primary import PartitionReplication
from storage.state.partition import Partition
from tests.memory import allocated
from tests.storage.storage_cluster import Cluster, with_edge
from wire.messages.batches import PublishMessage


def test_deadlines_keep_the_earliest_time_of_a_partition() -> None:
    times = Deadlines()
    times.set(1, 5.0)
    times.set(2, 3.0)
    times.set(1, 2.0)
    times.set(1, 9.0)
    assert (times.next, len(times), 1 in times) == (2.0, 2, True)
    assert times.take(1.9, 10) == []
    assert times.take(4.0, 1) == [1]
    times.forget(2)
    assert (times.next, times.take(99.0, 10)) == (float("inf"), [])


def test_deadlines_discard_superseded_entries() -> None:
    times = Deadlines()
    with allocated() as kept:
        for number in range(10_000):
            times.set(7, 10_000.0 - number)
    assert kept.bytes < 64_000
    assert times.take(1.0, 10) == [7] and times.take(99_999.0, 10) == []


def test_idle_partitions_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was streamed, checked and ticked 50 times a second: most of a core for thousands of them."""
    cluster = Cluster(nodes=3, replicas=3, min_in_sync=2, partitions=30)
    cluster.run(3.0)
    looks: list[str] = []

    def counted(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def count(*arguments: object, **named: object) -> object:
            looks.append(name)
            return original(*arguments, **named)

        monkeypatch.setattr(kind, name, count)

    counted(PartitionReplication, "stream")
    counted(PartitionReplication, "wanted")
    counted(Partition, "tick")
    counted(HostedPartition, "advance")
    cluster.run(1.0)
    assert looks == []


def test_served_clock_of_an_idle_partition_advances() -> None:
    """An export converts the deadlines of its rows by it."""
    cluster = Cluster(partitions=3)
    core = cluster.nodes["s1"].core
    before = core.served_ms(1)
    cluster.run(20.0)
    assert 19_500 <= core.served_ms(1) - before <= 20_500


def test_partitions_are_promoted_in_slices_or_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dying node leaves thousands: their promotion was one iteration, longer than a lease."""
    monkeypatch.setattr(placements, "PROMOTED_PER_ITERATION", 2)
    cluster, edge = with_edge(nodes=2, replicas=2, partitions=40)
    client = edge.open("alice", "a/#")
    number = client.session >> 48
    dead = cluster.map.partitions[number].primary
    (left,) = cluster.nodes.keys() - {dead}
    core = cluster.nodes[left].core
    orders: list[int] = []
    promote = Placements.promote

    def noted(self: Placements, number: int, now: float, next_batch: int) -> HostedPartition:
        orders.append(number)
        return promote(self, number, now, next_batch)

    monkeypatch.setattr(Placements, "promote", noted)
    cluster.kill(dead)
    edge.publish(PublishMessage(0, b"a/b", b"asked", 1), number)
    per_round: list[int] = []
    while core.placements.coming or not orders:
        before = len(orders)
        cluster.step()
        per_round.append(len(orders) - before)
        assert not (core.placements.coming and core.serving)
    assert max(per_round) <= 3 and sum(per_round) == 20  # the requested one, and a slice
    assert number in orders[:3]
    cluster.settle()
    assert core.serving and [push.payload for push in client.received] == [b"asked"]


def test_partition_that_moves_away_before_promotion_is_not_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """To its later primary this node must be a backup."""

    def none(self: Placements, now: float, next_batch: int) -> Iterable[HostedPartition]:
        del self, now, next_batch
        return []

    cluster = Cluster(nodes=3, replicas=3, min_in_sync=2, partitions=6)
    with monkeypatch.context() as held:
        held.setattr(Placements, "promote_some", none)
        cluster.kill("s1")
        cluster.run(0.5)
        assert any(node.core.placements.coming for node in cluster.nodes.values())
        cluster.kill("s2")
        cluster.start("s2")
        cluster.run(0.5)
    cluster.start("s1")
    cluster.run(8.0)
    for name, node in cluster.nodes.items():
        mine = {at for at, entry in enumerate(cluster.map.partitions) if entry.primary == name}
        assert set(node.core.partitions) == mine and node.core.serving
