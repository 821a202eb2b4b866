"""promtool validates the pages of every tier; a real Prometheus discovers, scrapes and evaluates a cluster."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clients.paho_client import V5, PahoClient
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.real_prometheus import PROMETHEUS, PROMTOOL, RealPrometheus, real_prometheus
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(
    not (PROMETHEUS and PROMTOOL), reason="prometheus is not here: Debian's package prometheus"
)
BOARDS = sorted((Path(__file__).parents[2] / "docs" / "monitoring").glob("grafana-*.json"))
NODES = ("--edges", "2", "--routers", "3", "--storages", "3")


def served(cluster: LocalCluster) -> str:
    """Return the address of the API, once it is served."""
    cluster.wait_for(lambda: "admin" in cluster.state["nodes"].get("admin", {}).get("addresses", {}), "served")
    return f"{cluster.state['nodes']['admin']['addresses']['admin']}api/v1"


@contextmanager
def load(cluster: LocalCluster) -> Iterator[None]:
    """Publish through one edge to the other, at every QoS, until the block ends."""
    reader = PahoClient(cluster.port(1, "plain"), "reader", version=V5)
    for qos in range(3):
        reader.subscribe(f"load/{qos}", qos)
    reader.subscribe("$share/readers/load/+", 1)
    writer = PahoClient(cluster.port(0, "plain"), "writer", version=V5)
    over = threading.Event()

    def publish() -> None:
        while not over.wait(0.05):
            for qos in range(3):
                writer.paho.publish(f"load/{qos}", b"x" * 100, qos, retain=qos == 1)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        writer.close()
        reader.close()


def happenings(cluster: LocalCluster) -> None:
    """Create events for the counters: a queue, a take-over, a refusal, a drop, a member of a shared group."""
    port = cluster.port(0, "plain")
    absent = PahoClient(port, "absent", expiry_s=1)
    absent.subscribe("load/1", 1)
    absent.close()
    first = PahoClient(port, "twice")
    second = PahoClient(cluster.port(1, "plain"), "twice")
    second.paho.publish("$SYS/not/allowed", b"", 0)
    second.subscribe("$share/group/a/+", 1)
    second.publish("a/b", "x", 1)
    first.paho.loop_stop()
    second.close()


@pytest.mark.slow
def test_prometheus_scrapes_cluster_and_alerts_on_kill(tmp_path: Path) -> None:
    """Pages of every tier are well-formed; each panel of each board has data; alerts fire after a kill, and resolve."""
    with local_cluster(*NODES, "--admin-port", "0", "--no-restart") as cluster, load(cluster):
        for node, about in cluster.state["nodes"].items():
            if "metrics" not in about["addresses"]:
                continue
            page = cluster.metrics(node)
            lint = subprocess.run(
                [PROMTOOL, "check", "metrics"], input=page, text=True, capture_output=True, check=False
            )
            assert lint.returncode == 0 and not lint.stderr, f"{node}: {lint.stderr}"
        base = served(cluster)
        token = str(cluster.admin("token", "create", "prometheus", "--role", "viewer")["token"])
        with real_prometheus(tmp_path, f"{base}/sd", token) as prometheus:
            nodes = {row["node"] for row in cluster.admin("node", "list")["nodes"]}
            prometheus.wait_for(
                lambda: prometheus.up() == dict.fromkeys(nodes, "up"), f"a page of each of {nodes} was read"
            )
            assert prometheus.firing() == set()
            happenings(cluster)
            boards_have_data(prometheus)
            storages = sorted(node for node in nodes if node.startswith("storage"))
            starts = {node: command_of(cluster, node) for node in storages}
            for node in storages:
                cluster.kill(node)
            prometheus.wait_for(lambda: {"partition_without_primary", "node_down"} <= prometheus.firing(), "fired")
            again = [subprocess.Popen(starts[node]) for node in storages]
            try:
                prometheus.wait_for(
                    lambda: not {"partition_without_primary", "node_down"} & prometheus.firing(), "resolved"
                )
                assert prometheus.up() == dict.fromkeys(nodes, "up")
            finally:
                for process in again:
                    process.terminate()
                for process in again:
                    process.wait(PATIENCE_S)


def boards_have_data(prometheus: RealPrometheus) -> None:
    """Each expression of Grafana's dashboards finds a series with a number."""
    panels = [
        (board.stem, panel["title"], target["expr"])
        for board in BOARDS
        for panel in json.loads(board.read_text())["panels"]
        for target in panel["targets"]
    ]
    assert len(panels) > 40
    missing = set(panels)

    def have_data() -> bool:
        missing.difference_update([panel for panel in missing if prometheus.query(panel[2])])
        return not missing

    try:
        prometheus.wait_for(have_data, "data for each panel")
    except AssertionError as error:
        error.add_note(f"without data: {sorted(missing)}")
        raise


def command_of(cluster: LocalCluster, node: str) -> list[str]:
    """Return a command that starts a node again, without the pipes of ``up``."""
    words = Path(f"/proc/{cluster.pid(node)}/cmdline").read_text().split("\0")[:-1]
    return words[: words.index("--config") + 2]
