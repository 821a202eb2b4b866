"""Processes with data of another cluster of the same name and authority: refused in one line, exit code 2."""

import datetime
import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.data_folder import read_cluster_file, write_cluster_file
from conf.errors import ExitCode
from stratamq.local_plan import ClusterPlan, NodePlan, UpOptions, make_plan
from tests.patience import PATIENCE_S

OTHER = "2" * 32


def node_of(plan: ClusterPlan, tier: str) -> NodePlan:
    assert plan.admin is not None
    return next(each for each in (*plan.nodes, plan.admin) if each.tier == tier)


def data_of(node: NodePlan) -> Path:
    return Path(tomllib.loads(node.config.read_text())["node"]["data_dir"])


def command(node: NodePlan) -> list[str]:
    return [sys.executable, "-m", "stratamq", node.tier, "--config", str(node.config), "--set", "logs.format=json"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterPlan]:
    """A cluster with one running router only."""
    folder = tmp_path_factory.mktemp("cluster")
    options = UpOptions(edges=1, data=folder, tls_port=0, balance=True, admin=True, admin_port=0)
    umask = os.umask(0o077)
    try:
        made = make_plan(options, folder, datetime.datetime.now(datetime.UTC))
    finally:
        os.umask(umask)
    router = node_of(made, "router")
    with (folder / "router.log").open("wb") as log:
        process = subprocess.Popen(command(router), stderr=log)
    deadline = time.monotonic() + PATIENCE_S
    while not read_cluster_file(data_of(router))[1]:
        assert time.monotonic() < deadline and process.poll() is None, (folder / "router.log").read_text()
        time.sleep(0.05)
    yield made
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("tier", ["storage", "edge", "balance", "admin"])
def test_process_with_data_of_another_cluster_ends_with_one_line(plan: ClusterPlan, tier: str) -> None:
    """Certificates and the cluster's name are right; the data belongs to another cluster, and stays unchanged."""
    node = node_of(plan, tier)
    folder, name = data_of(node), "stratamq"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_cluster_file(folder, name, OTHER)
    ended = subprocess.run(command(node), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    errors = [line for line in ended.stderr.splitlines() if line.startswith("stratamq: ")]
    assert (ended.returncode, len(errors)) == (ExitCode.USAGE, 1), ended.stderr
    router = node_of(plan, "router")
    assert OTHER in errors[0] and read_cluster_file(data_of(router))[1] in errors[0]
    assert read_cluster_file(folder) == (name, OTHER)
    assert "Traceback" not in ended.stderr


def test_node_of_another_name_ends_before_any_request(plan: ClusterPlan) -> None:
    """Its folder has another name: no router is needed."""
    node = node_of(plan, "storage")
    write_cluster_file(data_of(node), "elsewhere", OTHER)
    ended = subprocess.run(command(node), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == ExitCode.USAGE and "belongs to cluster elsewhere" in ended.stderr


@pytest.mark.parametrize("tier", ["admin", "balance"])
def test_cluster_client_ready_after_cluster_is_identified(plan: ClusterPlan, tier: str, tmp_path: Path) -> None:
    """It stores the cluster's identity; without a router it is not ready, and reports the reason."""
    node = node_of(plan, tier)
    router = node_of(plan, "router")
    name, cluster_id = read_cluster_file(data_of(router))
    fresh = ["--set", f"node.data_dir={tmp_path / 'fresh'}"]
    nobody = [*fresh, "--set", "node.seeds=127.0.0.1:1"]
    for settings, wanted in ((nobody, "node.waits"), (fresh, "node.ready")):
        process = subprocess.Popen([*command(node), *settings], stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        events = []
        try:
            for line in process.stderr:
                events.append(json.loads(line))
                if events[-1]["event"] == wanted:
                    break
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
        assert events[-1]["event"] == wanted
        assert wanted == "node.ready" or not any(event["event"] == "node.ready" for event in events)
    assert json.loads(events[-1]["addresses"])["cluster"] == f"{name} ({cluster_id})"
    assert read_cluster_file(tmp_path / "fresh") == (name, cluster_id)
