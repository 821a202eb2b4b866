"""More partitions than the 256 of the defaults, with real processes."""

from zlib import crc32

import pytest

from bench.failover import Load
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_cluster import connected, publish
from wire.messages.ranges import PARTITIONS_MAX


def stored_session_delivers(cluster: LocalCluster, partitions: int, root: str = "many") -> None:
    """Assert that a stored session in the upper half of the partitions gets messages published while it was away.

    ``root`` must be unused: a retained message would be delivered for SUBSCRIBE too.
    """
    client = next(
        name for at in range(10_000) if crc32((name := f"c{at}").encode()) % partitions >= partitions * 3 // 4
    )
    subscriber = connected(cluster, 0, client, clean=False)
    subscriber.subscribe(f"{root}/#", 1)
    subscriber.close()
    publish(cluster, 0, f"{root}/a", "kept", 1)
    publish(cluster, 0, f"{root}/b", "retained", 1, retain=True)
    back = connected(cluster, 0, client, clean=False)
    assert sorted(back.wait_for(2)) == [f"{root}/a kept", f"{root}/b retained"]
    back.close()


def test_512_partitions_survive_storage_restart() -> None:
    """Each edge read the number from the map: none failed at its start, and each partition has an outbox."""
    with local_cluster("--edges", "1", "--set", "router.partitions=512") as cluster:
        shown = cluster.admin("ring", "show")
        assert len(shown["partitions"]) == 512 and all(row["primary"] for row in shown["partitions"])
        stored_session_delivers(cluster, 512)
        assert "stratamq_partitions_primary 512.0" in cluster.metrics("storage-0")
        former = cluster.pid("storage-0")
        cluster.kill("storage-0")
        nodes = cluster.state["nodes"]
        cluster.wait_for(lambda: cluster.state["nodes"].get("storage-0", nodes["storage-0"])["pid"] != former, "anew")
        stored_session_delivers(cluster, 512, "again")


@pytest.mark.slow
def test_a_map_of_many_pages_serves() -> None:
    """4 096 partitions: the map takes more than one page, and so does the step that places them."""
    with local_cluster("--edges", "1", "--set", "router.partitions=4096") as cluster:
        stored_session_delivers(cluster, 4096)


@pytest.mark.slow
def test_largest_map_survives_loss_of_storage_node_with_three_copies() -> None:
    """QoS 1 publishers continue when a node of the largest map is killed: no loss, no other node restarts."""
    largest = f"router.partitions={PARTITIONS_MAX}"
    with local_cluster("--edges", "1", "--storages", "3", "--set", largest, "--set", "router.replicas=3") as cluster:
        nodes = {name: cluster.pid(name) for name in cluster.state["nodes"]}
        load = Load(cluster.port(0, "plain"), 40)
        load.run(2.0)
        cluster.kill("storage-1")
        load.run(10.0)
        assert max(client.gap_s for client in load.clients) < 20.0

        def whole() -> bool:
            load.run(1.0)
            status = cluster.admin("cluster", "status")
            return not (status["partitions_without_primary"] or status["partitions_under_replicated"])

        cluster.wait_for(whole, "whole", 120.0)
        load.run(20.0, sending=False)
        assert all(client.done and not client.faults for client in load.clients)
        assert [name for name, pid in nodes.items() if cluster.pid(name) != pid] == ["storage-1"]
