"""SUBACK means subscribed at every edge of a real cluster: a recorded history while routers are killed and stopped.

Subscribers and publishers at different edges, with recorded times; every 2 s the leader or a follower is killed with
-9, or stopped for longer than an election or a lease, and then resumed: to the others that is a partition.
``stratamq check`` checks the history.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.local_cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.slow

SECONDS = int(os.environ.get("ROUTE_HISTORY_SECONDS", "24"))


def disturb(cluster: LocalCluster, rng: random.Random) -> None:
    """Kill a router, or stop it for a while."""
    node = rng.choice(("router-0", "router-1", "router-2"))
    known = cluster.state["nodes"].get(node)
    if known is None:
        return  # on its way back
    stopped_s = rng.choice((0.0, 0.0, 0.6, 2.6))
    with contextlib.suppress(ProcessLookupError):
        if not stopped_s:
            os.kill(known["pid"], signal.SIGKILL)
            return
        os.kill(known["pid"], signal.SIGSTOP)
        time.sleep(stopped_s)
        os.kill(known["pid"], signal.SIGCONT)


def test_publish_after_suback_arrives_during_router_kills_and_stops(tmp_path: Path) -> None:
    """Unacknowledged messages may be late; no acknowledged one is missing."""
    history = tmp_path / "routes.jsonl"
    rng = random.Random(7)
    options = ("--routers", "3", "--storages", "1", "--edges", "3", "--plain-port", "0")
    with local_cluster(*options) as cluster:
        command = [sys.executable, "-m", "stratamq", "record", "--workload", "routes", "--output", str(history)]
        for edge in range(3):
            command += ["--broker", f"127.0.0.1:{cluster.port(edge, 'plain')}"]
        recorder = subprocess.Popen([*command, "--seconds", str(SECONDS), "--clients", "12", "--drain", "60"])
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(2.0)
            disturb(cluster, rng)
        assert recorder.wait(SECONDS + 120) == 0
    judged = LocalCluster.command("check", str(history), "-o", "json")
    verdict = json.loads(judged.stdout)
    assert judged.returncode == 0, judged.stdout[-3000:]
    assert verdict["checkers"]["subscribe_barrier"]["checked"] >= 50
