"""Real clients against a real cluster: paho-mqtt always, Mosquitto's and MQTT.js where they are installed."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from tests.clients.paho_client import V3, V5, PahoClient
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.patience import PATIENCE_S

TRANSPORTS = ("plain", "tls", "ws")
VERSIONS = (V3, V5)
TIMEOUT_S = PATIENCE_S
NODE_MODULES = Path(os.environ.get("MQTT_NODE_MODULES", "node_modules"))

JAVASCRIPT = """
const mqtt = require('mqtt');
const options = { protocolVersion: Number(process.argv[2]), ca: process.argv[4] &&
  require('fs').readFileSync(process.argv[4]), reconnectPeriod: 0, connectTimeout: 10000 };
const client = mqtt.connect(process.argv[1], options);
const got = [];
client.on('error', (error) => { console.error(error.message); process.exit(1); });
client.on('message', (topic, payload) => {
  got.push(payload.toString());
  if (got.length === 3) { console.log(got.sort().join(' ')); client.end(() => process.exit(0)); }
});
client.on('connect', () => client.subscribe('js/' + process.argv[3], { qos: 2 }, () => {
  for (const qos of [0, 1, 2]) client.publish('js/' + process.argv[3], 'q' + qos, { qos });
}));
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two edges: publisher and subscriber meet across them."""
    with local_cluster("--edges", "2", "--ws-port", "0") as running:
        yield running


def connected(
    cluster: LocalCluster,
    edge: int,
    listener: str,
    version: MQTTProtocolVersion,
    client_id: str = "",
    expiry_s: int = 0,
) -> PahoClient:
    """Return a client at a listener of an edge."""
    port = cluster.port(edge, listener)
    return PahoClient(
        port, client_id, listener=listener, authority=cluster.authority, version=version, expiry_s=expiry_s
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("listener", TRANSPORTS)
def test_paho_across_edges(cluster: LocalCluster, listener: str, version: MQTTProtocolVersion) -> None:
    """Every QoS, a retained message, over TCP, TLS and WebSocket."""
    topic = f"paho/{listener}/{int(version)}"
    subscriber, publisher = connected(cluster, 0, listener, version), connected(cluster, 1, listener, version)
    try:
        subscriber.subscribe(f"{topic}/+", 2)
        for qos in range(3):
            publisher.publish(f"{topic}/q", f"m{qos}", qos)
        assert sorted(subscriber.receive() for _ in range(3)) == [
            (f"{topic}/q", f"m{qos}", qos, False) for qos in range(3)
        ]
        publisher.publish(f"{topic}/r", "kept", 1, retain=True)
        assert subscriber.receive() == (f"{topic}/r", "kept", 1, False)
        late = connected(cluster, 1, listener, version)
        late.subscribe(f"{topic}/r", 1)
        assert late.receive() == (f"{topic}/r", "kept", 1, True)
        late.close()
    finally:
        subscriber.close()
        publisher.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_paho_session_resumes_at_another_edge(cluster: LocalCluster, version: MQTTProtocolVersion) -> None:
    """Messages queued while a client was away are delivered at its new edge."""
    name, topic = f"kept-{int(version)}", f"away/{int(version)}"
    first = connected(cluster, 0, "plain", version, name, expiry_s=100)
    first.subscribe(topic, 1)
    first.close()
    publisher = connected(cluster, 1, "tls", version)
    for number in range(5):
        publisher.publish(topic, str(number), 1)
    publisher.close()
    second = connected(cluster, 1, "ws", version, name, expiry_s=100)
    try:
        assert second.session_present
        assert [second.receive()[1] for _ in range(5)] == [str(number) for number in range(5)]
    finally:
        second.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_shared_group_redelivers_unacknowledged_messages(cluster: LocalCluster, version: MQTTProtocolVersion) -> None:
    """Section 4.8.2: a member of a shared group ends, and one at another edge gets its QoS 1 messages."""
    topic = f"shared/{int(version)}"
    silent, other = connected(cluster, 0, "plain", version), connected(cluster, 1, "plain", version)
    publisher = connected(cluster, 0, "tls", version)
    silent.paho.manual_ack_set(True)
    sent = {str(number) for number in range(10)}
    try:
        for member in (silent, other):
            member.subscribe(f"$share/g/{topic}", 1)
        for payload in sorted(sent):
            publisher.publish(topic, payload, 1)
        first = {silent.receive()[1]}
        silent.close()
        assert {other.receive()[1] for _ in sent} == sent and first < sent
    finally:
        other.close()
        publisher.close()


@pytest.mark.parametrize("version", ["311", "5"])
@pytest.mark.parametrize("listener", ["plain", "tls"])
def test_mosquitto_clients(cluster: LocalCluster, listener: str, version: str) -> None:
    """mosquitto_pub and mosquitto_sub."""
    for program in ("mosquitto_pub", "mosquitto_sub"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: mosquitto-clients)")
    common = ["-h", "localhost", "-V", version, "-t", f"mosquitto/{listener}/{version}", "-q", "1"]
    common += ["--cafile", cluster.authority] if listener == "tls" else []
    publish = ["mosquitto_pub", "-p", str(cluster.port(1, listener)), "-m", "hello", *common]
    subscribe = ["mosquitto_sub", "-p", str(cluster.port(0, listener)), "-C", "1", "-W", "15", *common]
    # Retained, so the subscriber may connect later.
    subprocess.run([*publish, "-r"], check=True, timeout=TIMEOUT_S)
    got = subprocess.run(subscribe, check=True, timeout=2 * TIMEOUT_S, capture_output=True, text=True)
    assert got.stdout == "hello\n"


@pytest.mark.parametrize("version", ["4", "5"])
@pytest.mark.parametrize("listener", TRANSPORTS)
def test_mqtt_js(cluster: LocalCluster, listener: str, version: str) -> None:
    """MQTT.js, used in browsers."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    if not (NODE_MODULES / "mqtt").is_dir():
        pytest.skip(f"no mqtt in {NODE_MODULES} (npm install mqtt; MQTT_NODE_MODULES names another folder)")
    scheme = {"plain": "mqtt", "tls": "mqtts", "ws": "ws"}[listener]
    path = "/mqtt" if listener == "ws" else ""
    url = f"{scheme}://localhost:{cluster.port(0, listener)}{path}"
    authority = [cluster.authority] if listener == "tls" else []
    command = ["node", "-e", JAVASCRIPT, "--", url, version, f"{listener}-{version}", *authority]
    environment = os.environ | {"NODE_PATH": str(NODE_MODULES.resolve())}
    got = subprocess.run(command, timeout=2 * TIMEOUT_S, capture_output=True, text=True, env=environment, check=False)
    assert (got.returncode, got.stdout) == (0, "q0 q1 q2\n"), got.stderr


@pytest.mark.parametrize(
    ("target", "origin", "status"),
    [
        ("/mqtt", "http://localhost:{port}", 101),
        ("/mqtt", "http://localhost:3000", 403),
        ("/mqtt", "https://evil.example", 403),
        ("/mqtt", "http://evil.example:{port}", 421),  # DNS rebinding: Host is the page's own name
        ("/admin", "", 404),
    ],
)
def test_websocket_of_foreign_origin_refused(cluster: LocalCluster, target: str, origin: str, status: int) -> None:
    """The refusal reaches the browser, is counted and logged."""
    port = cluster.port(0, "ws")
    origin = origin.format(port=port)
    host = f"evil.example:{port}" if status == 421 else f"localhost:{port}"
    request = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    request += (
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n"
    )
    request += f"Origin: {origin}\r\n\r\n" if origin else "\r\n"
    with socket.create_connection(("localhost", port), TIMEOUT_S) as browser:
        browser.sendall(request.encode())
        assert browser.recv(1000).split(b" ")[1] == (b"403" if status == 421 else str(status).encode())
    if status != 101:
        names = {421: "websocket_hosts_refused", 403: "websocket_origins_refused", 404: "websocket_paths_refused"}
        name = names[status]
        assert f'event="{name}"' in cluster.metrics("edge-0")
