"""A real HAProxy before an edge: TLS passes through, PROXY headers name the client, checks are no clients."""

import csv
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_clients import VERSIONS, connected
from tests.patience import PATIENCE_S

TIMEOUT_S = PATIENCE_S
LISTENERS = ("plain", "tls", "ws", "wss")
CONNECT = "100c00044d5154540402000a0000"  # MQTT 3.1.1, clean session, no client ID
CONNACK = "20020000"
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
ROUTES = tuple((listener, version) for listener in LISTENERS for version in ("send-proxy", "send-proxy-v2"))


def haproxy_file(ports: dict[str, int], sockets: list[socket.socket], status: str) -> str:
    """One frontend and backend per route; the frontends' sockets are handed over, so that no port is chosen twice."""
    lines = ["global", "    maxconn 200", f"    stats socket {status}", "defaults", "    mode tcp"]
    lines += [f"    timeout {what} 20s" for what in ("connect", "client", "server", "check")]
    for (listener, version), bound in zip(ROUTES, sockets, strict=True):
        more = " proxy-v2-options crc32c" if version == "send-proxy-v2" else ""
        lines += [
            f"listen {listener}-{version}",
            f"    bind fd@{bound.fileno()}",
            f"    server edge 127.0.0.1:{ports[listener]} {version}{more} check inter 100ms",
        ]
    return "\n".join([*lines, *checking_backends(ports)]) + "\n"


def checking_backends(ports: dict[str, int]) -> list[str]:
    """Return a backend for each kind of check, listener and version: HAProxy sends LOCAL with those of version 2."""
    lines = []
    for listener, version in ROUTES:
        secure = " check-ssl verify none" if listener in ("tls", "wss") else ""
        server = f"    server edge 127.0.0.1:{ports[listener]} {version} check inter 100ms{secure}"
        if secure:
            lines += [f"backend handshake-{listener}-{version}", server]
        lines += [f"backend answer-{listener}-{version}", "    option tcp-check", "    tcp-check connect default"]
        if listener in ("ws", "wss"):
            lines += [f"    tcp-check send-binary {UPGRADE.hex()}", "    tcp-check expect string HTTP/1.1\\ 101"]
        else:
            lines += [f"    tcp-check send-binary {CONNECT}", f"    tcp-check expect binary {CONNACK}"]
        lines.append(server)
    return lines


class Balanced:
    """An edge and the HAProxy before it."""

    def __init__(self, cluster: LocalCluster, edge: ExtraEdge, ports: dict[tuple[str, str], int], status: str) -> None:
        self.cluster = cluster
        self.status = status  # path of HAProxy's socket for operators
        self.edge = edge
        self.ports = ports
        self.route = ROUTES[0]
        self.authority = cluster.authority

    def port(self, _edge: int, listener: str) -> int:
        """Return the port of HAProxy for the route at hand; for an unproxied one the listener's own."""
        return self.ports[self.route] if (listener, self.route[1]) == self.route else self.edge.port(listener)

    def servers(self) -> list[dict[str, str]]:
        """Return HAProxy's status of its servers."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(TIMEOUT_S)
            asking.connect(self.status)
            asking.sendall(b"show stat -1 4 -1\n")
            answer = b"".join(iter(lambda: asking.recv(65_536), b""))
        return list(csv.DictReader(answer.decode().strip().splitlines()))


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Balanced]:
    if shutil.which("haproxy") is None:
        pytest.skip("haproxy is not installed (Debian: haproxy)")
    tables = {
        name: {"tls": name in ("tls", "wss"), "protocol": name if name == "ws" else "mqtt", "proxy_protocol": "any"}
        for name in LISTENERS
    }
    tables["wss"]["protocol"] = "ws"
    tables["far"] = {"tls": False, "proxy_protocol": "any", "proxy_trusted": ["203.0.113.0/24", "2001:db8::/32"]}
    with local_cluster("--edges", "1") as cluster, extra_edge(cluster, tables) as edge:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in ROUTES]
        ports = {route: one.getsockname()[1] for route, one in zip(ROUTES, sockets, strict=True)}
        folder = tmp_path_factory.mktemp("haproxy")
        config, status = folder / "haproxy.cfg", str(folder / "status")
        config.write_text(haproxy_file({name: edge.port(name) for name in LISTENERS}, sockets, status))
        command = ["haproxy", "-db", "-f", str(config)]
        process = subprocess.Popen(command, pass_fds=[one.fileno() for one in sockets])
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not Path(status).is_socket():
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.02)
            yield Balanced(cluster, edge, ports, status)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            for one in sockets:
                one.close()


@pytest.mark.parametrize("route", ROUTES, ids="-".join)
def test_clients_behind_haproxy(balanced: Balanced, route: tuple[str, str]) -> None:
    """MQTT, MQTT over TLS, WebSocket and both, with either version of the header."""
    balanced.route = route
    listener, version = route
    transport = {"wss": "ws"}.get(listener, listener)
    for mqtt in VERSIONS:
        client = connected(balanced, 0, listener, mqtt)  # type: ignore[arg-type]
        try:
            topic = f"haproxy/{listener}/{version}/{int(mqtt)}/{transport}"
            client.subscribe(topic, 1)
            client.publish(topic, "through", 1)
            assert client.receive() == (topic, "through", 1, False)
        finally:
            client.close()


def test_health_checks_counted_separately(balanced: Balanced) -> None:
    """Health checks, LOCAL or with a header without an address, count neither as clients nor as errors."""
    deadline = time.monotonic() + TIMEOUT_S
    while (events := balanced.edge.events(balanced.cluster)).get("proxy_checks", 0) < 3 * len(ROUTES):
        assert time.monotonic() < deadline, events
        time.sleep(0.05)
    for name in ("proxy_headers_wrong", "proxy_untrusted", "closed_failed"):
        assert name not in events, events


def test_checks_of_tls_and_mqtt_are_answered(balanced: Balanced) -> None:
    """``check-ssl`` and ``tcp-check``: HAProxy sends LOCAL and then speaks TLS, MQTT or HTTP [PROXY protocol, 2.2]."""
    kinds = [f"answer-{listener}-{version}" for listener, version in ROUTES]
    kinds += [f"handshake-{listener}-{version}" for listener, version in ROUTES if listener in ("tls", "wss")]
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        rows = {row["# pxname"]: row for row in balanced.servers()}
        checked = {kind: rows[kind]["check_status"] for kind in kinds}
        if all(status in ("L6OK", "L7OK") for status in checked.values()):
            break
        assert time.monotonic() < deadline, checked
        time.sleep(0.05)
    assert {rows[kind]["status"] for kind in kinds} == {"UP"}


def test_proxy_header_of_untrusted_address_refused(balanced: Balanced) -> None:
    """A connection from outside ``proxy_trusted`` is closed before its header is used."""
    with socket.create_connection(("127.0.0.1", balanced.edge.port("far")), TIMEOUT_S) as stranger:
        stranger.settimeout(TIMEOUT_S)
        try:
            stranger.sendall(b"PROXY TCP4 203.0.113.9 203.0.113.1 5555 1883\r\n")
            assert stranger.recv(100) == b""
        except ConnectionError:
            pass
    assert balanced.edge.events(balanced.cluster)["proxy_untrusted"] == 1
