"""More partitions than the 256 of the defaults, with real processes."""

from zlib import crc32

import pytest

from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_cluster import Subscriber, publish


def stored_session_delivers(cluster: LocalCluster, partitions: int, root: str = "many") -> None:
    """A stored session in the upper half of the partitions gets what was published while it was away.

    Nothing was published below ``root`` before: a retained message would be delivered for SUBSCRIBE too.
    """
    client = next(
        name for at in range(10_000) if crc32((name := f"c{at}").encode()) % partitions >= partitions * 3 // 4
    )
    subscriber = Subscriber(cluster, 0, client, clean=False)
    subscriber.subscribe(f"{root}/#", 1)
    subscriber.close()
    publish(cluster, 0, f"{root}/a", "kept", 1)
    publish(cluster, 0, f"{root}/b", "retained", 1, retain=True)
    back = Subscriber(cluster, 0, client, clean=False)
    assert sorted(back.wait_for(2)) == [f"{root}/a kept", f"{root}/b retained"]
    back.close()


def test_512_partitions_serve_and_outlive_their_storage_process() -> None:
    """Each edge took the number from the map: none ended at its start, and each partition has an outbox."""
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
