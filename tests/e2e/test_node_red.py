"""Node-RED 4, which routes messages by Subscription Identifier, with flows of overlapping topics."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.paho_client import V5, PahoClient
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.patience import PATIENCE_S

NODE_MODULES = Path(os.environ.get("MQTT_NODE_MODULES", "node_modules"))
SETTINGS = """
module.exports = { uiPort: 0, uiHost: "127.0.0.1", httpAdminRoot: false, httpNodeRoot: false, flowFile: "flows.json",
  credentialSecret: false, telemetry: { enabled: false }, logging: { console: { level: "info" } } };
"""
TOPICS = {"all": "nr/#", "one": "nr/a"}


@pytest.fixture(scope="module")
def program() -> Path:
    """Return the file that starts Node-RED."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed (Debian: nodejs)")
    program = NODE_MODULES / "node-red" / "red.js"
    if not program.exists():
        pytest.skip(f"no node-red in {NODE_MODULES} (npm install node-red; MQTT_NODE_MODULES names another folder)")
    return program.resolve()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--edges", "1") as running:
        yield running


def flows(port: int, version: str, name: str, *, stored: bool) -> list[dict[str, Any]]:
    """Return two ``mqtt in`` nodes with overlapping topics; their received messages are published below ``seen/``."""
    broker = {
        "id": "broker", "type": "mqtt-broker", "broker": "127.0.0.1", "port": str(port), "clientid": name,
        "autoConnect": True, "usetls": False, "protocolVersion": version, "keepalive": "60",
        "cleansession": not stored, "sessionExpiry": "600" if stored else "", "autoUnsubscribe": True,
    }  # fmt: skip
    nodes: list[dict[str, Any]] = [{"id": "tab", "type": "tab", "label": "overlap", "disabled": False}, broker]
    for node, topic in TOPICS.items():
        place = {"z": "tab", "x": 100, "y": 100, "broker": "broker"}
        seen = f"seen/{name}/{node}"
        nodes.append(
            {"id": f"in-{node}", "type": "mqtt in", "topic": topic, "qos": "1", "datatype": "utf8", "nl": False}
            | {"rap": True, "rh": 0, "inputs": 0, "wires": [[f"out-{node}"]]} | place
        )  # fmt: skip
        # QoS, RETAIN and topic are those of the message unless the node names its own.
        nodes.append({"id": f"out-{node}", "type": "mqtt out", "topic": seen, "qos": "1", "retain": "false"} | place)
        nodes[-1]["wires"] = []
    return nodes


@contextlib.contextmanager
def node_red(program: Path, folder: Path, nodes: list[dict[str, Any]]) -> Iterator[Path]:
    """Run Node-RED with flows; yield its log."""
    (folder / "settings.js").write_text(SETTINGS)
    (folder / "flows.json").write_text(json.dumps(nodes))
    log = folder / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(["node", str(program), "--userDir", str(folder)], stdout=output, stderr=output)
        try:
            yield log
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.mark.parametrize("version", ["4", "5"])
@pytest.mark.parametrize("stored", [False, True], ids=["ephemeral", "stored"])
def test_each_node_receives_messages_of_its_topic(
    program: Path, cluster: LocalCluster, tmp_path: Path, version: str, stored: bool
) -> None:
    """One copy for each Subscription Identifier: Node-RED drops a message with two of them."""
    name = f"nr{version}{int(stored)}"
    port = cluster.port(0, "plain")
    other = PahoClient(port, f"{name}-other", version=V5)
    try:
        other.publish("nr/a", "ready", 1, retain=True)
        other.subscribe(f"seen/{name}/#", 1)
        with node_red(program, tmp_path, flows(port, version, name, stored=stored)) as log:
            wait_for(other, {(f"seen/{name}/{node}", "ready") for node in TOPICS}, log)
            wanted = set()
            for qos in (0, 1, 2):
                other.publish("nr/a", f"live {qos}", qos)
                wanted |= {(f"seen/{name}/{node}", f"live {qos}") for node in TOPICS}
            other.publish("nr/b", "beside", 1)
            seen = wait_for(other, wanted | {(f"seen/{name}/all", "beside")}, log)
        live = [each for each in seen if each[1] != "ready"]
        assert len(live) == len(set(live)), "a node got a message twice"
        assert (f"seen/{name}/one", "beside") not in live
    finally:
        other.close()


def wait_for(client: PahoClient, wanted: set[tuple[str, str]], log: Path) -> list[tuple[str, str]]:
    """Wait until all of these arrived; return all received messages."""

    def came() -> list[tuple[str, str]]:
        return [(message.topic, message.payload.decode()) for message in client.messages]

    try:
        client.wait(lambda: wanted <= set(came()), "received by Node-RED")
    except AssertionError as error:
        raise AssertionError(f"{sorted(wanted - set(came()))} of {error}: {log.read_text()[-2000:]}") from None
    return came()
