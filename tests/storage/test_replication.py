"""Primary and backups: acknowledged operations are on every in-sync replica, and equal op_index means equal state."""

from collections.abc import Iterable

import pytest

from router.map.commands import AcceptLoss, DeclareDead, PlacePartitions
from storage.hosting import placements
from storage.hosting.placements import Placements
from storage.replication.primary import CATCH_UP_ROWS, TRANSFERS_AT_A_TIME
from storage.state import keys
from tests.storage.replicas import assert_equal_states, heal_placement, state_of
from tests.storage.requests import message
from tests.storage.storage_cluster import Cluster, with_edge, with_settings
from wire.messages.batches import PublishMessage, encode_message
from wire.messages.cluster_map import PartitionEntry
from wire.messages.frames import FrameKind
from wire.messages.sessions import SessionOpened


@pytest.fixture
def cluster() -> Cluster:
    """Return three nodes with three copies of each partition, two of which must be in sync."""
    return Cluster(nodes=3, replicas=3, min_in_sync=2)


def test_operations_are_applied_on_every_replica(cluster: Cluster) -> None:
    """Logs and states are equal once the commit index was sent."""
    edge = cluster.edges["e1"]
    alice = edge.open("alice", "a/#")
    for number in range(20):
        edge.publish(message(str(number)), alice.session >> 48)
    cluster.settle()
    assert len(edge.acked) == 20
    cluster.run(1.5)
    indexes = {state_of(disk, alice.session >> 48)[0] for disk in cluster.disks.values()}
    assert len(indexes) == 1 and indexes.pop() > 0
    assert_equal_states(cluster)


def test_acknowledgement_waits_for_every_in_sync_backup(cluster: Cluster) -> None:
    """One slow disk delays the acknowledgement until that backup is dropped."""
    edge = cluster.edges["e1"]
    alice = edge.open("alice", "a/#")
    partition = alice.session >> 48
    slow = cluster.map.partitions[partition].in_sync[1]
    cluster.nodes[slow].disk_slow = True
    edge.publish(message("m"), partition)
    cluster.run(1.0)
    assert not edge.acked and not alice.received
    cluster.run(3.0)
    assert edge.acked and slow not in cluster.map.partitions[partition].in_sync


@pytest.mark.parametrize("power", [False, True])
def test_failover_loses_no_acknowledged_message(cluster: Cluster, power: bool) -> None:
    """P1: kill or power loss of the primary at any step of a stream of messages."""
    edge = cluster.edges["e1"]
    alice = edge.open("alice", "a/#")
    partition = alice.session >> 48
    edge.close(alice)
    sent = 0
    for _ in range(3):
        for _ in range(10):
            edge.publish(message(str(sent)), partition)
            sent += 1
            cluster.step()
        dead = cluster.map.partitions[partition].primary
        cluster.kill(dead, power=power)
        cluster.run(0.3)
        cluster.start(dead)
        heal_placement(cluster, 3)
    cluster.settle()
    assert len(edge.acked) == sent and not edge.unfinished
    alice = edge.open("alice")
    assert [push.payload for push in alice.received] == [str(number).encode() for number in range(sent)]
    cluster.run(0.5)
    assert_equal_states(cluster)


def test_wiped_node_is_rebuilt_by_range_transfer() -> None:
    """The log was trimmed: state arrives in slices while messages continue."""
    settings = with_settings(log_operations_max=10)
    cluster, edge = with_edge(nodes=3, replicas=3, min_in_sync=2, partitions=1, settings=settings)
    alice = edge.open("alice", "a/#")
    edge.close(alice)
    for number in range(100):
        edge.publish(PublishMessage(0, b"a/b", str(number).encode() * 2000, 1), 0)
        cluster.step()
    cluster.settle()
    victim = cluster.map.partitions[0].in_sync[1]
    cluster.kill(victim, wipe=True)
    cluster.run(0.2)
    cluster.start(victim)
    for number in range(100, 150):
        edge.publish(PublishMessage(0, b"a/b", str(number).encode() * 2000, 1), 0)
        cluster.step()
    heal_placement(cluster, 3)
    cluster.run(1.5)
    assert cluster.nodes[victim].core.placements.replicas[0].transfers == 1
    assert len(edge.acked) == 150
    assert state_of(cluster.disks[victim], 0)[0] == state_of(cluster.disks[cluster.primary(0).key.node], 0)[0]
    assert_equal_states(cluster)


def test_failover_takes_a_second_without_interrupting_other_partitions(cluster: Cluster) -> None:
    """After the death is declared: read, make the log durable, poll, serve."""
    edge = cluster.edges["e1"]
    edge.open("alice")
    dead = cluster.map.partitions[0].primary
    others = [
        hosted for name, node in cluster.nodes.items() if name != dead for hosted in node.core.partitions.values()
    ]
    cluster.kill(dead)
    for _ in range(100):
        cluster.step()
        assert all(hosted.serving for hosted in others)
        if all(
            (node := cluster.nodes.get(placement.primary)) is not None and node.core.serving
            for placement in cluster.map.partitions
        ):
            return
    raise AssertionError("does not serve again within a second")


def test_stale_primary_is_refused(cluster: Cluster) -> None:
    """Two primaries: operations of the lower partition_epoch are appended to no log."""
    edge = cluster.edges["e1"]
    alice = edge.open("alice", "a/#")
    partition = alice.session >> 48
    old = cluster.map.partitions[partition].primary
    cluster.silence(old)  # it gets no frames of the routers any more
    before = cluster.nodes[old]

    cluster.apply(DeclareDead(old, before.key.incarnation))
    tag = edge.publish(message("m"), partition)
    cluster.run(1.0)
    assert edge.acked == {tag: 0}
    assert old in cluster.nodes and partition in before.core.partitions
    acked = len(edge.acks)

    epoch = before.core.partitions[partition].partition.epoch
    lost = PublishMessage(77, b"a/b", b"lost", 1, partitions=(partition,), epochs=(epoch,))
    cluster.send(edge.key, old, FrameKind.PUBLISH, encode_message(lost))
    cluster.run(1.0)
    assert len(edge.acks) == acked
    cluster.end_silence()
    cluster.start(old) if old not in cluster.nodes else None
    heal_placement(cluster, 3)
    cluster.run(0.5)
    assert_equal_states(cluster)


def test_too_few_in_sync_copies_acknowledge_no_message() -> None:
    """Two copies, two must be in sync: one alone acknowledges no message and does not lose the partition."""
    cluster, edge = with_edge(nodes=2, replicas=2, min_in_sync=2)
    alice = edge.open("alice", "a/#")
    partition = alice.session >> 48
    backup = cluster.map.partitions[partition].in_sync[1]
    cluster.kill(backup)
    tag = edge.publish(message("m"), partition)
    cluster.run(5.0)
    assert not edge.acked
    cluster.start(backup)
    heal_placement(cluster, 2)
    cluster.settle()
    assert edge.acked == {tag: 0}


def test_dead_backup_is_replaced_after_a_delay() -> None:
    """It stays in sync without another candidate; it may return at any time, and then is complete."""
    cluster = Cluster(nodes=3, replicas=2, min_in_sync=2, partitions=1)
    primary, backup = cluster.map.partitions[0].in_sync
    spare = next(name for name in cluster.nodes if name not in (primary, backup))
    cluster.kill(backup)
    cluster.run(3.0)
    assert cluster.map.partitions[0].joining == ()
    cluster.start(backup)
    heal_placement(cluster, 2)
    assert cluster.map.partitions[0].in_sync == (primary, backup)
    cluster.kill(backup)
    cluster.run(8.0)
    assert cluster.map.partitions[0].in_sync == (primary, spare)


def test_returning_node_is_not_replaced() -> None:
    cluster = Cluster(nodes=3, replicas=2, min_in_sync=2, partitions=1)
    primary, backup = cluster.map.partitions[0].in_sync
    spare = next(name for name in cluster.nodes if name not in (primary, backup))
    cluster.filter = lambda _, target, kind, __: kind != FrameKind.REPLICATE or target != spare
    cluster.kill(backup)
    while spare not in cluster.map.partitions[0].joining:
        cluster.step()
    cluster.start(backup)
    heal_placement(cluster, 2)
    assert cluster.map.partitions[0].in_sync == (primary, backup)


def test_one_copy_beside_an_empty_one_acknowledges_no_message() -> None:
    """The map does not list a node that returned without its store; two must be in sync all the same."""
    cluster = Cluster(nodes=2, replicas=2, min_in_sync=2, partitions=1)
    cluster.edges["e1"].open("alice", "a/#")
    primary, backup = cluster.map.partitions[0].in_sync
    cluster.kill(backup, wipe=True)
    cluster.cut(primary, backup)
    cluster.start(backup)
    tag = cluster.edges["e1"].publish(message("m"), 0)
    cluster.run(5.0)
    assert cluster.map.partitions[0].in_sync == (primary,)
    assert not cluster.edges["e1"].acked
    cluster.heal(primary, backup)
    heal_placement(cluster, 2)
    cluster.settle()
    assert cluster.edges["e1"].acked == {tag: 0}


def test_returning_backup_catches_up_from_the_log(cluster: Cluster) -> None:
    """It missed operations; no range transfer is needed while the log has them."""
    edge = cluster.edges["e1"]
    alice = edge.open("alice", "a/#")
    partition = alice.session >> 48
    backup = cluster.map.partitions[partition].in_sync[2]
    cluster.kill(backup)
    for number in range(30):
        edge.publish(message(str(number)), partition)
        cluster.step()
    cluster.start(backup)
    heal_placement(cluster, 3)
    cluster.run(0.5)
    assert len(edge.acked) == 30
    assert all(
        replica.transfers == 0 for node in cluster.nodes.values() for replica in node.core.placements.replicas.values()
    )
    assert_equal_states(cluster)


def test_copy_of_a_moved_partition_is_deleted_when_whole_elsewhere() -> None:
    """Not before; and the deleted copy is rebuilt when the partition comes back."""
    cluster = Cluster(nodes=3, replicas=2, min_in_sync=1)
    heal_placement(cluster, 2)
    edge = cluster.edges["e1"]
    alice = edge.open("alice", "a/#")
    edge.close(alice)
    for number in range(30):
        edge.publish(message(str(number)), alice.session >> 48)
    cluster.settle()
    number = alice.session >> 48
    backup = next(n for n in cluster.map.partitions[number].in_sync if cluster.primary(number).core.node != n)
    start, stop = keys.partition_range(number)

    def rows() -> int:
        return sum(1 for key in cluster.disks[backup].records if start <= key < stop)

    cluster.run(1.5)
    assert rows() > 30
    placement = cluster.map.partitions[number]
    assert not cluster.apply(
        PlacePartitions({number: PartitionEntry(placement.epoch + 1, placement.primary, (placement.primary,))})
    )
    cluster.run(3.0)
    assert rows() > 30, "deleted while it was the only other copy"
    heal_placement(cluster, 2)
    if backup in cluster.map.partitions[number].in_sync:  # it had a copy: it got it back
        other = next(name for name in cluster.nodes if name not in cluster.map.partitions[number].in_sync)
        placement = cluster.map.partitions[number]
        joined = PartitionEntry(placement.epoch + 1, placement.primary, placement.in_sync, (other,))
        assert not cluster.apply(PlacePartitions({number: joined}))
        cluster.run(3.0)
        placement = cluster.map.partitions[number]
        left = tuple(name for name in placement.in_sync if name != backup)
        assert not cluster.apply(
            PlacePartitions({number: PartitionEntry(placement.epoch + 1, placement.primary, left)})
        )
    cluster.run(placements.MOVED_COPY_S / 2)
    assert rows() > 30
    cluster.run(placements.MOVED_COPY_S / 2 + 5.0)
    assert rows() == 1, "the remaining row has the epochs that this copy has seen"
    placement = cluster.map.partitions[number]
    again = PartitionEntry(placement.epoch + 1, placement.primary, placement.in_sync, (backup,))
    assert not cluster.apply(PlacePartitions({number: again}))
    cluster.run(3.0)
    assert backup in cluster.map.partitions[number].in_sync
    assert_equal_states(cluster)


def test_returning_backup_rejoins_at_once() -> None:
    """A spare node would need the whole state; the dropped one lacks only later operations."""
    cluster = Cluster(nodes=4, replicas=3, min_in_sync=2)
    heal_placement(cluster, 3)
    former = [placement.in_sync for placement in cluster.map.partitions]
    backup = next(name for name in former[0] if name != cluster.map.partitions[0].primary)
    cluster.kill(backup)
    cluster.run(0.5)
    assert len(cluster.map.partitions[0].in_sync) == 2, "a dead backup is waited for"
    cluster.start(backup)
    began = cluster.now
    heal_placement(cluster, 3)
    assert cluster.now - began < 4.0
    assert [set(placement.in_sync) for placement in cluster.map.partitions] == [set(names) for names in former]


@pytest.mark.parametrize("left", ["stale", "nothing"])
def test_accepted_loss_of_whole_copies_serves_the_remaining_copy(left: str) -> None:
    """The selected node serves its state, and reuses no number that it may have missed."""
    cluster = Cluster(nodes=3, replicas=2, min_in_sync=1)
    heal_placement(cluster, 2)
    edge = cluster.edges["e1"]
    alice = edge.open("alice", "a/#")
    cluster.settle()
    number = alice.session >> 48
    whole = cluster.map.partitions[number].in_sync
    heir = next(n for n in whole if n != cluster.primary(number).core.node)
    if left == "nothing":
        heir = next(name for name in cluster.nodes if name not in whole)
        for name in whole:
            cluster.kill(name, wipe=True)
    else:
        placement = cluster.map.partitions[number]
        alone = PartitionEntry(placement.epoch + 1, placement.primary, (placement.primary,))
        cluster.kill(heir)
        cluster.apply(PlacePartitions({number: alone}))
        bob = edge.open("bob")  # the copy lacks it
        cluster.kill(placement.primary, wipe=True)
        cluster.start(heir)
        assert bob
    cluster.run(1.0)
    lost = cluster.map.partitions[number]
    assert not lost.primary
    assert "nothing" not in cluster.nodes[heir].core.placements.describe([number])[str(number)] or left == "nothing"
    assert "not a live storage node" in cluster.apply(
        AcceptLoss({number: lost.epoch}, whole[0] if heir != whole[0] else whole[1])
    )
    assert "look again" in cluster.apply(AcceptLoss({number: lost.epoch - 1}, heir))
    assert not cluster.apply(AcceptLoss({number: lost.epoch}, heir))
    cluster.run(3.0)
    assert "nothing is lost" in cluster.apply(AcceptLoss({number: lost.epoch + 1}, heir))
    again = cluster.edges["e2"].open("alice")
    assert cluster.edges["e2"].answers(SessionOpened)[-1].session_present == (left == "stale")
    carol = edge.open("carol")
    if carol.session >> 48 == number:
        assert carol.session & (1 << 48) - 1 >= 1 << 28
    assert again.session if left == "stale" else again.session & (1 << 48) - 1 >= 1 << 28


def test_wiped_node_is_rebuilt_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of partitions begin to copy at once; their reads per iteration are bounded."""
    read: list[int] = []
    turns: list[int] = []
    stream = Placements.stream

    def counted(self: Placements, now: float, touched: Iterable[int], *, sweeps: bool) -> list[tuple[str, int, bytes]]:
        frames = stream(self, now, touched, sweeps=sweeps)
        read.append(CATCH_UP_ROWS - self._catch_up.rows)
        turns.append(len(self._catch_up.transfers))
        return frames

    monkeypatch.setattr(Placements, "stream", counted)
    few = with_settings(log_operations_max=4)  # so that the log does not suffice for copies
    cluster, edge = with_edge(nodes=3, replicas=3, min_in_sync=2, partitions=24, settings=few)
    for name in range(60):
        session = edge.open(f"c{name}", settle=False)
    cluster.settle()
    for connection in list(edge.connections.values()):
        edge.subscribe(connection, "a/#", settle=False)
    cluster.settle()
    for connection in list(edge.connections.values()):
        edge.close(connection, settle=False)
    cluster.settle()
    assert session.session
    for number in range(240):
        edge.publish(message("x" * 100 + str(number)), number % 24)
    cluster.settle()
    cluster.kill("s2", wipe=True)
    cluster.run(1.0)
    read.clear()
    turns.clear()
    cluster.start("s2")
    heal_placement(cluster, 3)
    assert 0 < max(turns) <= TRANSFERS_AT_A_TIME
    assert 0 < max(read) <= 2 * CATCH_UP_ROWS  # the last slice of an iteration may exceed it
    assert_equal_states(cluster)


def test_commit_index_is_sent_with_the_next_operation_or_alone() -> None:
    """A backup applies an operation with the next operation; without one, a second later."""
    cluster, edge = with_edge(nodes=3, replicas=3, min_in_sync=2, partitions=1)
    edge.open("alice", "a/#")
    primary = cluster.primary(0)
    backups = [name for name in cluster.map.partitions[0].in_sync if name != primary.key.node]
    cluster.run(1.5)

    def applied() -> list[int]:
        newest = primary.core.partitions[0].partition.meta.op_index
        return [newest - cluster.nodes[name].core.placements.replicas[0].applied for name in backups]

    assert applied() == [0, 0]
    for number in range(3):
        edge.publish(message(str(number)), 0)
        cluster.run(0.3)
        assert applied() == [1, 1]
    cluster.run(1.2)
    assert applied() == [0, 0]
