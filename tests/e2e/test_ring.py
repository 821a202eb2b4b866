"""Moving partitions and shards in a real cluster, with the leader killed meanwhile; routers leave and join."""

from collections.abc import Iterator

import pytest

from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_cluster import Subscriber, publish

pytestmark = pytest.mark.slow

SETTINGS = ("router.replicas=2", "router.min_in_sync=1", "router.partitions=16")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    with local_cluster("--routers", "3", "--storages", "3", "--edges", "1", *options) as running:
        yield running


def refused(cluster: LocalCluster, *arguments: str) -> str:
    """Run a command that must fail; return its one line."""
    result = cluster.command(*arguments, "--data", str(cluster.data))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_a_drained_storage_node_holds_nothing_and_nothing_is_lost(cluster: LocalCluster) -> None:
    """Queued messages move with their partition."""
    subscriber = Subscriber(cluster, 0, "durable", clean=False)
    subscriber.subscribe("d/#", 1)
    subscriber.close()
    for number in range(10):
        publish(cluster, 0, f"d/{number}", "x", 1)
    assert cluster.admin("ring", "drain", "storage-1")["phase"] == "done"
    held = {node["node"]: node["replicas"] for node in cluster.admin("node", "list")["nodes"]}
    assert held["storage-1"] == 0
    assert cluster.admin("ring", "verify")["ok"]
    again = Subscriber(cluster, 0, "durable", clean=False)
    assert len(again.wait_for(10)) == 10
    again.close()


def test_a_rebalance_goes_on_when_the_leader_is_killed(cluster: LocalCluster) -> None:
    """The job is in the log."""
    cluster.admin("ring", "add", "storage-1", "--detach")
    cluster.kill(cluster.admin("cluster", "status")["leader"])
    cluster.wait_for(lambda: cluster.admin("ring", "status")["phase"] == "done", "rebalanced")
    assert cluster.admin("ring", "verify")["ok"]


def test_refusals_are_one_line(cluster: LocalCluster) -> None:
    """Unknown node, a node that holds something, a router that is not in the group."""
    assert "unknown node" in refused(cluster, "ring", "drain", "storage-9")
    assert "still holds" in refused(cluster, "ring", "remove", "storage-0", "--yes")
    assert "not in the group" in refused(cluster, "cluster", "leave", "router-9", "--yes")


def test_a_router_leaves_the_group_and_joins_again(cluster: LocalCluster) -> None:
    """Learner, caught up, voter."""
    leader = cluster.admin("cluster", "status")["leader"]
    other = next(name for name in ("router-0", "router-1", "router-2") if name != leader)
    assert other not in cluster.admin("cluster", "leave", other, "--yes")["voters"]
    assert other in cluster.admin("cluster", "join", other)["voters"]
