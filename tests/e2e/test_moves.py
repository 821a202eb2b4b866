"""Partition moves between real processes under load lose, repeat or reorder no message, and can be aborted.

Clients with durable sessions send to themselves all the time and count the returned messages (``bench.failover``).
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from bench.failover import Load
from conf.errors import UserError
from stratamq.cli.node_requests import ask_links
from tests.e2e.local_cluster import LocalCluster, local_cluster

SETTINGS = ("router.replicas=2", "router.min_in_sync=1", "router.partitions=32")
MOVED_S = 60.0


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    with local_cluster("--storages", "3", "--edges", "1", *options) as running:
        yield running


def run_until(load: Load, condition: Callable[[], bool], what: str) -> None:
    """Let the clients go on until a condition holds."""
    for _ in range(int(MOVED_S / 0.2)):
        if condition():
            return
        load.run(0.2)
    raise AssertionError(f"not {what} after {MOVED_S} s")


def run_command(cluster: LocalCluster, load: Load, *words: str) -> int:
    """Run a command of the operator while the clients go on; return its exit code."""
    command = [sys.executable, "-m", "stratamq", *words, "--data", str(cluster.data)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    run_until(load, lambda: process.poll() is not None, " ".join(words))
    return process.returncode


def phase(cluster: LocalCluster) -> str:
    """Return the phase of the rebalance."""
    return str(ask_links("ring status", {}, "", cluster.data).result["phase"])


def held(cluster: LocalCluster, node: str) -> int:
    """Return how many copies in sync a node has."""
    nodes = ask_links("node list", {}, "", cluster.data).result["nodes"]
    return int(next(entry["replicas"] for entry in nodes if entry["node"] == node))


def is_whole(cluster: LocalCluster) -> bool:
    """Whether every partition has a primary and all its copies."""
    try:
        status = ask_links("cluster status", {}, "", cluster.data).result
    except UserError:
        return False
    return not status["partitions_without_primary"] and not status["partitions_under_replicated"]


def check(load: Load) -> None:
    """Assert that every message returned once and in order."""
    load.run(30.0, sending=False)
    assert not [fault for client in load.clients for fault in client.faults]
    assert all(client.done for client in load.clients)


def test_partitions_move_under_load_and_move_can_be_aborted(cluster: LocalCluster) -> None:
    """Drain, add, abort, add again."""
    load = Load(cluster.port(0, "plain"), 24)
    load.run(1.0)
    assert run_command(cluster, load, "ring", "drain", "storage-1") == 0
    assert held(cluster, "storage-1") == 0
    assert run_command(cluster, load, "ring", "add", "storage-1", "--detach") == 0
    run_command(cluster, load, "ring", "abort")
    run_until(load, lambda: phase(cluster) in ("aborted", "done"), "aborted")
    run_until(load, lambda: is_whole(cluster), "whole")
    assert run_command(cluster, load, "ring", "rebalance") == 0
    assert held(cluster, "storage-1") > 0
    assert run_command(cluster, load, "ring", "verify") == 0
    check(load)


@pytest.mark.slow
def test_moves_beside_kills_and_a_wiped_disk(cluster: LocalCluster) -> None:
    """After any kill during a move, the placement is the old or the new one, and a wiped node is rebuilt."""
    load = Load(cluster.port(0, "plain"), 40)
    load.run(1.0)
    for number in range(9):
        victim, moved = f"storage-{number % 3}", f"storage-{(number + number // 3) % 3}"
        run_command(cluster, load, "ring", "drain", moved, "--detach")
        load.run(0.3 * (number % 4))
        cluster.kill(victim)
        if number % 3 == 2:
            store = cluster.data / victim / "store"
            shutil.move(store, store.with_name(f"gone-{number}"))
        load.run(3.0)
        run_command(cluster, load, "ring", "abort")
        run_command(cluster, load, "ring", "add", moved, "--detach")
        run_until(load, lambda: phase(cluster) not in ("running", "aborting"), "at rest")
        run_until(load, lambda: is_whole(cluster), "whole")
    run_command(cluster, load, "ring", "rebalance")
    assert phase(cluster) in ("done", "none")
    check(load)
