"""Real nodes that cannot serve: each reports the reason in its log, at /readyz and in `cluster status`."""

import datetime
import json
import os
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratamq.local_plan import NodePlan, UpOptions, make_plan
from tests.e2e.local_cluster import LocalCluster
from tests.patience import PATIENCE_S

LINE = "256 partitions have no place: 3 copies wanted, 1 storage node"
WAIT_S = 60.0


def readyz(plan: NodePlan) -> str:
    """Return a node's /readyz, "" while its port is closed."""
    port = tomllib.loads(plan.config.read_text())["metrics"]["port"]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_S) as page:
            return str(page.read().decode())
    except urllib.error.HTTPError as error:
        assert error.code == 503
        return error.read().decode()
    except OSError:
        return ""


def until(wanted: str, plan: NodePlan) -> None:
    deadline = time.monotonic() + WAIT_S
    while (reason := readyz(plan)) != wanted:
        assert time.monotonic() < deadline, reason
        time.sleep(0.1)


class Nodes:
    """Nodes of a plan, started one by one."""

    def __init__(self, folder: Path, *settings: str) -> None:
        options = UpOptions(edges=1, data=folder, tls_port=0, settings=settings)
        self.folder, self.settings = folder, settings
        self.plan = make_plan(options, folder, datetime.datetime.now(datetime.UTC))
        self.running: list[subprocess.Popen[bytes]] = []
        self._lifeline, self._ours = os.pipe()  # as children of `up` have one: their files lie in one folder

    def start(self, node: NodePlan, *settings: str) -> None:
        set_options = [word for setting in (*self.settings, *settings) for word in ("--set", setting)]
        words = [*set_options, "--lifeline-fd", str(self._lifeline)]
        command = [sys.executable, "-m", "stratamq", node.tier, "--config", str(node.config), *words]
        with self.log(node).open("wb") as log:
            self.running.append(subprocess.Popen(command, stderr=log, pass_fds=(self._lifeline,)))

    def log(self, node: NodePlan) -> Path:
        return self.folder / f"{node.name}.log"

    def end(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            assert process.wait(PATIENCE_S) == 0
        os.close(self._ours)
        os.close(self._lifeline)


@pytest.fixture
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path, *getattr(request, "param", ()))
    yield made
    made.end()


@pytest.mark.parametrize("nodes", [("router.replicas=3", "router.min_in_sync=2")], indirect=True)
def test_three_copies_and_one_storage_node(nodes: Nodes) -> None:
    """The edge first reports that no router answers, then the copies without a node; the router reports these too."""
    plan = nodes.plan
    (edge,) = plan.of_tier("edge")
    nodes.start(edge)
    until(f"not ready: no router answers at {plan.routers[0]}\n", edge)
    for node in (*plan.of_tier("router"), *plan.of_tier("storage")):
        nodes.start(node)
    until(f"not ready: {LINE}\n", edge)
    shown = LocalCluster.command(
        "cluster", "status", "--router", plan.routers[0], "--data", str(nodes.folder), "-o", "json"
    )
    assert json.loads(shown.stdout)["waits_for"] == LINE
    deadline = time.monotonic() + WAIT_S
    while f"waiting: {LINE}" not in nodes.log(edge).read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_node_probed_before_ready_becomes_ready(nodes: Nodes) -> None:
    """Probes come at any time: an edge with an early request failed when it announced its page."""
    (edge,) = nodes.plan.of_tier("edge")
    nodes.start(edge, "metrics.prepare=true")
    until(f"not ready: no router answers at {nodes.plan.routers[0]}\n", edge)
    for node in (*nodes.plan.of_tier("router"), *nodes.plan.of_tier("storage")):
        nodes.start(node)
    until("ok\n", edge)
    assert nodes.running[0].poll() is None
