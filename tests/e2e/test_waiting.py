"""Real nodes that cannot serve: each says what it waits for, in its log, at /readyz and in `cluster status`."""

import datetime
import json
import os
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

from stratamq.local_plan import NodePlan, UpOptions, make_plan
from tests.e2e.local_cluster import LocalCluster

LINE = "256 partitions have no place: 3 copies wanted, 1 storage node"
WAIT_S = 60.0


def readyz(plan: NodePlan) -> str:
    """Return a node's /readyz, "" while nobody listens."""
    port = tomllib.loads(plan.config.read_text())["metrics"]["port"]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as page:
            return str(page.read().decode())
    except urllib.error.HTTPError as error:
        assert error.code == 503
        return error.read().decode()
    except OSError:
        return ""


def until(wanted: str, plan: NodePlan) -> None:
    deadline = time.monotonic() + WAIT_S
    while (said := readyz(plan)) != wanted:
        assert time.monotonic() < deadline, said
        time.sleep(0.1)


def test_three_copies_and_one_storage_node(tmp_path: Path) -> None:
    """The edge says first that no router answers, then which copies lack a place; the router says the latter too."""
    settings = ("router.replicas=3", "router.min_in_sync=2")
    options = UpOptions(edges=1, data=tmp_path, tls_port=0, settings=settings)
    plan = make_plan(options, tmp_path, datetime.datetime.now(datetime.UTC))
    lifeline, ours = os.pipe()  # children of `up` have one: their files lie in a folder that is closed as a whole
    running = []

    def start(node: NodePlan) -> None:
        words = [*(word for setting in settings for word in ("--set", setting)), "--lifeline-fd", str(lifeline)]
        command = [sys.executable, "-m", "stratamq", node.tier, "--config", str(node.config), *words]
        with (tmp_path / f"{node.name}.log").open("wb") as log:
            running.append(subprocess.Popen(command, stderr=log, pass_fds=(lifeline,)))

    try:
        (edge,) = plan.of_tier("edge")
        start(edge)
        until(f"not ready: no router answers at {plan.routers[0]}\n", edge)
        for node in (*plan.of_tier("router"), *plan.of_tier("storage")):
            start(node)
        until(f"not ready: {LINE}\n", edge)
        shown = LocalCluster.command(
            "cluster", "status", "--router", plan.routers[0], "--data", str(tmp_path), "-o", "json"
        )
        assert json.loads(shown.stdout)["waits_for"] == LINE
        deadline = time.monotonic() + WAIT_S
        while f"waiting: {LINE}" not in (tmp_path / "edge-0.log").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            assert process.wait(30) == 0
        os.close(ours)
        os.close(lifeline)
