"""Moving partitions and shards in a real cluster, with the leader killed meanwhile; routers leave and join."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_cluster import connected, publish

pytestmark = pytest.mark.slow

SETTINGS = ("router.replicas=2", "router.min_in_sync=1", "router.partitions=16")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    with local_cluster("--routers", "3", "--storages", "3", "--edges", "1", *options) as running:
        # Partitions are placed when there are two storage nodes: one that came later gets its share by itself.
        running.wait_for(lambda: running.admin("cluster", "status")["rebalance_due"] == 0, "in balance")
        yield running


def refused(cluster: LocalCluster, *arguments: str) -> str:
    """Run a command that must fail; return its one line."""
    result = cluster.command(*arguments, "--data", str(cluster.data))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_drained_storage_node_holds_no_partition_and_loses_no_message(cluster: LocalCluster) -> None:
    """Queued messages move with their partition."""
    subscriber = connected(cluster, 0, "durable", clean=False)
    subscriber.subscribe("d/#", 1)
    subscriber.close()
    for number in range(10):
        publish(cluster, 0, f"d/{number}", "x", 1)
    assert cluster.admin("ring", "drain", "storage-1")["phase"] == "done"
    held = {node["node"]: node["replicas"] for node in cluster.admin("node", "list")["nodes"]}
    assert held["storage-1"] == 0
    assert cluster.admin("ring", "verify")["ok"]
    again = connected(cluster, 0, "durable", clean=False)
    assert len(again.wait_for(10)) == 10
    again.close()


def test_rebalance_continues_when_leader_killed(cluster: LocalCluster) -> None:
    """The job is in the log."""
    cluster.admin("ring", "add", "storage-1", "--detach")
    cluster.kill(cluster.admin("cluster", "status")["leader"])
    cluster.wait_for(lambda: cluster.admin("ring", "status")["phase"] == "done", "rebalanced")
    assert cluster.admin("ring", "verify")["ok"]


def placement(cluster: LocalCluster) -> list[set[str]]:
    return [set(row["in_sync"]) for row in cluster.admin("ring", "show")["partitions"]]


def finished(cluster: LocalCluster) -> bool:
    return cluster.admin("ring", "status")["phase"] not in ("running", "aborting")


def test_killed_command_leaves_old_or_new_placement(cluster: LocalCluster) -> None:
    """kill -9 of the command line, from its start to long after its order was accepted."""
    began = time.monotonic()
    cluster.admin("ring", "plan")
    whole_s = time.monotonic() - began
    seen = set()
    for number, share in enumerate((0.5, 0.8, 0.95, 1.05, 1.2, 1.5, 2.5)):
        before = placement(cluster)
        verb = "add" if number % 2 else "drain"
        command = [sys.executable, "-m", "stratamq", "ring", verb, "storage-2", "--data", str(cluster.data)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(whole_s * share)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        cluster.wait_for(lambda: finished(cluster), "at rest")
        verified = cluster.admin("ring", "verify")
        assert verified["ok"], verified
        after = placement(cluster)
        assert all(len(copies) == 2 for copies in after)
        whole = not cluster.admin("ring", "plan")["slots_moved"]
        assert after == before or whole, (share, verb)
        seen.add(after == before)
    cluster.admin("ring", "add", "storage-2")
    assert seen == {True, False}, "killed too early, or too late, every time"


def test_rebalance_paused_resumed_and_aborted(cluster: LocalCluster) -> None:
    """Each is one word; a watching command ends with exit code 3, partial."""
    planned = cluster.admin("ring", "drain", "storage-1", "--dry-run")
    assert planned["slots_moved"] and {"keys", "bytes"} <= set(planned["moves"][0])
    before = placement(cluster)
    cluster.admin("ring", "drain", "storage-1", "--detach", "--throttle", "1")
    if not cluster.command("ring", "pause", "--data", str(cluster.data)).returncode:  # else it was done before
        assert cluster.admin("ring", "status")["phase"] == "paused"
        assert "paused" in refused(cluster, "ring", "rebalance")
        cluster.admin("ring", "resume")
    cluster.command("ring", "abort", "--data", str(cluster.data))  # it may be done already
    cluster.wait_for(lambda: finished(cluster), "at rest")
    status: Any = cluster.admin("ring", "status")
    assert status["phase"] in ("aborted", "done")
    if status["phase"] == "aborted" and not status["done"]:
        assert placement(cluster) == before
    cluster.admin("ring", "add", "storage-1")
    assert cluster.admin("ring", "verify")["ok"]


def test_delegation_tried_created_and_removed(cluster: LocalCluster) -> None:
    """explain follows it; a removal requires --yes."""
    at = cluster.admin("ring", "explain", "plant-7/x/y")["shard"]
    assert cluster.admin("ring", "delegate", "plant-7", "--depth", "2", "--pin", "router-1", "--dry-run")["dry_run"]
    assert cluster.admin("ring", "explain", "plant-7/x/y")["shard"] == at
    cluster.admin("ring", "delegate", "plant-7", "--depth", "2", "--pin", "router-1")
    assert cluster.admin("ring", "explain", "plant-7/x/y")["owner"] == "router-1"
    assert cluster.command("ring", "undelegate", "plant-7", "--data", str(cluster.data)).returncode == 2
    cluster.admin("ring", "undelegate", "plant-7", "--yes")
    assert cluster.admin("ring", "explain", "plant-7/x/y")["shard"] == at
    assert cluster.admin("ring", "export")["format"] == "stratamq-ring"


def test_refusals_are_one_line(cluster: LocalCluster) -> None:
    """An unknown node, a node with partitions, a router outside the group."""
    assert "unknown node" in refused(cluster, "ring", "drain", "storage-9")
    assert "still holds" in refused(cluster, "ring", "remove", "storage-0", "--yes")
    assert "not in the group" in refused(cluster, "cluster", "leave", "router-9", "--yes")


def test_router_leaves_group_and_rejoins(cluster: LocalCluster) -> None:
    """Learner, caught up, voter."""
    leader = cluster.admin("cluster", "status")["leader"]
    other = next(name for name in ("router-0", "router-1", "router-2") if name != leader)
    assert other not in cluster.admin("cluster", "leave", other, "--yes")["voters"]
    assert other in cluster.admin("cluster", "join", other)["voters"]


def test_change_without_majority_refused(cluster: LocalCluster) -> None:
    """Two of three routers are stopped: exit code 4, one line for each queried router, no state changed."""
    before = placement(cluster)
    leader = cluster.admin("cluster", "status")["leader"]
    stopped = [cluster.pid(name) for name in ("router-0", "router-1", "router-2") if name != leader]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        for words in (("ring", "delegate", "plant-9", "--depth", "2"), ("ring", "rebalance")):
            result = cluster.command(*words, "--data", str(cluster.data))
            assert result.returncode == 4, result
            assert "Traceback" not in result.stderr and 1 <= result.stderr.count("\n") <= 3, result.stderr
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    cluster.wait_for(lambda: cluster.command("ring", "plan", "--data", str(cluster.data)).returncode == 0, "led again")
    shown = cluster.admin("ring", "show")
    assert not any(rule["prefix"] == "plant-9" for rule in shown["delegations"])
    assert placement(cluster) == before
