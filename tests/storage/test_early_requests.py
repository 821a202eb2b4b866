"""What reaches a node before its map says that it is the primary."""

import pytest

from tests.storage.storage_cluster import Cluster
from tests.storage.test_partition import message
from tests.storage.test_wills_and_retained import read, retained
from wire.batches import encode_message
from wire.frames import FrameKind


@pytest.mark.parametrize("dies", [True, False])
def test_what_waited_for_the_map_is_dropped_when_its_edge_has_died_meanwhile(dies: bool) -> None:
    """Simulation seed 10152: a dead edge's message was taken behind newer ones that its client sent elsewhere."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1)
    former, other = cluster.edges["e2"], cluster.edges["e1"]
    primary = cluster.machine.map.partitions[0].primary
    (backup,) = cluster.nodes.keys() - {primary}
    early = retained("t", "early")
    early.tag, early.partitions = 1, (0,)
    cluster.send(former.key, backup, FrameKind.PUBLISH, encode_message(early))
    cluster.run(0.1)
    if dies:
        cluster.kill_edge("e2")
        cluster.settle()
    other.publish(retained("t", "newer"), 0)
    cluster.settle()
    assert [message.payload for message in read(cluster, "#")] == [b"newer"]
    cluster.kill(primary)
    cluster.settle()
    assert cluster.primary(0).key.node == backup
    assert [message.payload for message in read(cluster, "#")] == [b"newer" if dies else b"early"]


def test_what_waited_for_the_map_is_not_overtaken_by_what_comes_with_it() -> None:
    """The later one was taken first, earlier ones were repeats then: acknowledged and lost (perhaps seed 10175)."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1)
    publisher = cluster.start_edge("z1")  # what an edge of this name sends arrives behind the map in each round
    alice = cluster.edges["e1"].open("alice")
    cluster.edges["e1"].subscribe(alice, "a/#")
    primary = cluster.machine.map.partitions[0].primary
    (backup,) = cluster.nodes.keys() - {primary}
    cluster.silent.add(backup)  # it does not hear yet that it is the primary
    cluster.kill(primary)
    first = publisher.publish(message("first"), 0)
    cluster.run(0.1)
    cluster.silent.clear()
    second = publisher.publish(message("second"), 0)
    cluster.settle()
    assert cluster.primary(0).key.node == backup
    assert [push.payload for push in alice.received] == [b"first", b"second"]
    assert publisher.acked == {first: 0, second: 0}
