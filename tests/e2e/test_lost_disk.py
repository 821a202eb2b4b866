"""A real router process with a damaged or wiped Raft disk: it reports it, does not vote, and rejoins."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_cluster import connected, publish

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--routers", "3", "--storages", "1", "--edges", "1") as running:
        yield running


def follower(cluster: LocalCluster) -> str:
    leader = cluster.admin("cluster", "status")["leader"]
    return next(name for name in ("router-0", "router-1", "router-2") if name != leader)


def back(cluster: LocalCluster, node: str, before: int) -> bool:
    """Return True once a new process of the node is alive in the map and owns route shards again."""
    known = cluster.state["nodes"].get(node)
    if known is None or known["pid"] == before:
        return False
    nodes = {entry["node"]: entry for entry in cluster.admin("node", "list")["nodes"]}
    return bool(nodes[node]["state"] == "active" and nodes[node]["shards"] > 0)


def end(cluster: LocalCluster, node: str, folder_gone: bool) -> Path:
    """Kill a router; its folder is wiped, or its hard state damaged, before it starts again."""
    folder = cluster.data / node / "raft"
    if folder_gone:
        # The running process keeps its open files, the next start finds an empty disk.
        folder.rename(folder.with_name("lost"))
    else:
        path = folder / "hard_state"
        data = bytearray(path.read_bytes())
        data[-1] ^= 0xFF
        path.write_bytes(data)
    cluster.kill(node)
    return folder


def test_wiped_router_learns_and_votes_again(cluster: LocalCluster) -> None:
    """It returns with a new identity; then the group survives the loss of another router."""
    node = follower(cluster)
    before = cluster.pid(node)
    end(cluster, node, folder_gone=True)
    cluster.wait_for(lambda: back(cluster, node, before), "back")
    shutil.rmtree(cluster.data / node / "lost")
    text = (cluster.data / "logs" / f"{node}.log").read_text()
    assert "has no vote until the" in text
    cluster.wait_for(lambda: f"raft: promote {node}" in logs(cluster), "a voter again")
    other = next(name for name in ("router-0", "router-1", "router-2") if name not in (node, follower(cluster)))
    cluster.kill(other)
    subscriber = connected(cluster, 0, "lost-disk", clean=True)
    subscriber.subscribe("lost/#", 1)
    publish(cluster, 0, "lost/1", "x", 1)
    assert len(subscriber.wait_for(1)) == 1
    subscriber.close()


def logs(cluster: LocalCluster) -> str:
    return "".join(path.read_text() for path in (cluster.data / "logs").glob("router-*.log"))


def test_damaged_router_reports_and_rejoins_when_folder_is_moved(cluster: LocalCluster) -> None:
    """One line without a traceback; no acknowledgement counts it meanwhile."""
    cluster.wait_for(lambda: all(f"router-{index}" in cluster.state["nodes"] for index in range(3)), "complete")
    node = follower(cluster)
    before = cluster.pid(node)
    folder = end(cluster, node, folder_gone=False)
    log = cluster.data / "logs" / f"{node}.log"
    cluster.wait_for(lambda: "the Raft log is damaged" in log.read_text(), "refusing")
    message = next(line for line in log.read_text().splitlines() if "the Raft log is damaged" in line)
    assert "hard_state: CRC is wrong" in message and "neither votes nor serves" in message
    assert "Traceback" not in log.read_text()
    folder.rename(folder.with_name("raft.damaged"))
    cluster.wait_for(lambda: back(cluster, node, before), "back", 90.0)
