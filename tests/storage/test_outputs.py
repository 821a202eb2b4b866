"""The order in which what a partition says leaves its node, and what it is worth there."""

from router.map.machine import PlacePartitions
from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from storage.state.settings import PartitionSettings
from tests.simulation.model_store import ModelDisk, ModelStore
from tests.storage.storage_cluster import STORE_SETTINGS, Cluster
from wire.messages.batches import PublishMessage
from wire.messages.cluster_map import PartitionEntry
from wire.messages.frames import FrameKind
from wire.messages.sessions import Subscription


def test_what_needed_no_commit_is_not_overtaken_while_nothing_may_leave() -> None:
    """Simulation seed 20059: nothing leaves without a lease; when it was back, the earlier push went last."""
    store = ModelStore.open(ModelDisk(), "cluster", "s1", STORE_SETTINGS)
    partition = Partition(0, PartitionSettings(), store, {}, 0.0)
    session = DurableSession(1, "alice")
    session.edge = "e1"
    partition.push(session, b"first", settled=True)
    partition.put(b"row", b"of the second")
    partition.push(session, b"second")
    partition.close_operation()
    partition.push(session, b"third", settled=True)  # committed, but what goes before it is not
    partition.close_operation()
    assert partition.meta.op_index == 1
    partition.note_synced("", 1)  # the round in which anything may leave again
    pushes = [b"first", b"second", b"third"]
    assert partition.committed_outputs() == [("e1", FrameKind.PUSH, payload) for payload in pushes]
    assert partition.committed_outputs() == []


def test_a_pubrel_that_waits_for_a_backup_is_good_after_a_step_of_the_epoch() -> None:
    """Seed 103 of ``tests/e2e/test_paho_kills.py``: a storage node stood still, and each of two clients that kept their
    connections was never given a message of QoS 2. A push that needed no commit had overtaken PUBREL under the epoch of
    the next step, and edges take nothing of a lower epoch than they saw.
    """
    cluster = Cluster(nodes=3, replicas=3, min_in_sync=2, partitions=1)
    edge = cluster.edges["e1"]
    alice = edge.open("alice", receive_maximum=2)
    edge.subscribe(alice, Subscription("two", 2), Subscription("one", 1))
    for topic, qos in ((b"two", 2), (b"one", 1), (b"one", 1), (b"one", 1)):
        edge.publish(PublishMessage(0, topic, b"m", qos), 0)
    cluster.settle()
    edge.acknowledge(edge.pushes[1], 4)
    cluster.settle()
    first, _, second = edge.pushes  # two are open; what follows has its identifier, and that is committed
    placement = cluster.machine.map.partitions[0]
    silent, other = (name for name in placement.in_sync if name != placement.primary)
    cluster.cut(placement.primary, silent)
    edge.acknowledge(first, 5)
    cluster.run(0.05)
    cluster.cut(placement.primary, other)  # so that what waits goes on waiting for a moment
    left = (placement.primary, other)
    assert not cluster.apply(PlacePartitions({0: PartitionEntry(placement.epoch + 1, placement.primary, left)}))
    cluster.run(0.05)
    edge.acknowledge(second, 4)
    cluster.run(0.05)
    assert [push.session_seq for push in edge.pushes] == [1, 2, 3, 4], "a place in the window was free"
    cluster.heal(placement.primary, other)
    cluster.run(1.0)
    assert cluster.primary(0).core.node == placement.primary
    assert [push.session_seq for push in edge.pushes if push.pubrel] == [first.session_seq]
