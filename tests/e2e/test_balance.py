"""A balancer before three edges: clients connect, survive the balancer, and never reach a dead edge."""

import datetime
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtt.codec import StreamDecoder, encode_packet
from mqtt.packets import Connack, Connect, Pingreq
from mqtt.properties import PropertyId
from mqtt.reasons import ReasonCode
from tests.e2e.extra_balancer import balancer, status_of, wait_until
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.free_ports import free_port
from tests.patience import PATIENCE_S
from wire.links.authority import DevelopmentAuthority

PINGRESP = b"\xd0\x00"
EDGES = ("edge-0", "edge-1", "edge-2")


NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--edges", "3", "--storages", "1", "--routers", "1", "--balance") as running:
        running.wait_for(lambda: len(candidates(running)) == 6, "six candidates")
        yield running


def status(cluster: LocalCluster) -> dict[str, Any]:
    return cluster.admin("balance", "status")


def candidates(cluster: LocalCluster) -> list[tuple[str, str]]:
    """Return (edge, listener); each edge has one row for all its listeners."""
    rows = [row for row in status(cluster)["edges"] if row["state"] == "candidate"]
    assert len({row["edge"] for row in rows}) == len(rows)
    return [(row["edge"], listener) for row in rows for listener in row["listeners"].split(", ")]


def door(cluster: LocalCluster, listener: str = "plain") -> int:
    return int(cluster.state["listeners"]["balance-0"][listener])


def connect(port: int, name: str, context: ssl.SSLContext | None = None) -> socket.socket:
    """Return the connection of a client that got CONNACK 0."""
    client = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    if context is not None:
        client = context.wrap_socket(client, server_hostname="localhost")
    client.sendall(encode_packet(Connect(name), 5))
    answer = client.recv(1000)
    assert answer[:1] == b"\x20" and answer[3] == 0, answer
    return client


def alive(clients: list[socket.socket]) -> int:
    """Return how many connections still answer."""
    count = 0
    for client in clients:
        try:
            client.sendall(encode_packet(Pingreq(), 5))
            count += client.recv(2) == PINGRESP
        except OSError:
            pass
    return count


def picks(cluster: LocalCluster) -> dict[str, int]:
    return {row["edge"]: row["picks"] for row in status(cluster)["edges"] if "picks" in row}


def close(clients: list[socket.socket]) -> None:
    for client in clients:
        client.close()


def test_clients_handed_over_survive_balancer_kill(cluster: LocalCluster) -> None:
    """Each goes to the edge with the fewest clients; kill -9 of the balancer closes no connection."""
    context = ssl.create_default_context(cafile=cluster.authority)
    clients = [connect(door(cluster), f"plain{n}") for n in range(60)]
    clients += [connect(door(cluster, "tls"), f"tls{n}", context) for n in range(3)]
    assert max(picks(cluster).values()) - min(picks(cluster).values()) <= 1
    page = cluster.metrics("balance-0")
    assert 'stratamq_balancer_picks_total{edge="edge-0",way="hand_over"} 21.0' in page
    assert (
        'stratamq_balancer_candidates{listener="tls"} 3.0' in page and "stratamq_balancer_map_age_seconds 0.0" in page
    )
    before = cluster.pid("balance-0")
    cluster.kill("balance-0")
    assert alive(clients) == len(clients)
    cluster.wait_for(lambda: cluster.is_started_again("balance-0", before), "another balancer")
    cluster.wait_for(lambda: len(candidates(cluster)) == 6, "six candidates")
    clients.append(connect(door(cluster), "later"))
    assert alive(clients) == len(clients)
    close(clients)


def test_no_connect_fails_when_edge_killed(cluster: LocalCluster) -> None:
    """The attempt at the dead edge is invisible to the client; the edge is used again when it returns."""
    before = cluster.pid("edge-1")
    cluster.kill("edge-1")
    began = time.monotonic()
    clients: list[socket.socket] = []
    while time.monotonic() - began < 4.0:
        clients.append(connect(door(cluster), f"k{len(clients)}"))
        time.sleep(0.02)
    assert alive(clients) == len(clients)
    cluster.wait_for(lambda: cluster.is_started_again("edge-1", before), "edge-1 again")
    cluster.wait_for(lambda: len(candidates(cluster)) == 6, "six candidates")
    close(clients)


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_relay_carries_tls_and_stops_gracefully(cluster: LocalCluster) -> None:
    """Non-MQTT input is closed; SIGTERM refuses new clients and waits for relayed connections."""
    context = ssl.create_default_context(cafile=cluster.authority)
    listeners = {"plain": {"port": free_port(), "opaque": False, "read": "connect"}, "tls": {"port": free_port()}}
    with balancer(cluster, "relays", listeners=listeners, forward="relay", policy="round_robin") as (process, ports):
        clients = [connect(ports["plain"], f"relayed{n}") for n in range(6)]
        clients.append(connect(ports["tls"], "relayed-tls", context))
        assert refused(ports["plain"], b"GET / HTTP/1.1\r\n")
        status = status_of(cluster, "relays")
        assert status["refused"] == {"not_mqtt": 1} and status["relayed"] == 7
        assert alive(clients) == 7
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: not can_connect(ports["plain"]))
        assert alive(clients) == 7
        close(clients)
        assert process.wait(PATIENCE_S) == 0


def test_mqtt5_client_is_redirected(cluster: LocalCluster) -> None:
    """A client of another version is closed, and so is one that sends no CONNECT in time."""
    listeners = {"plain": {"port": free_port(), "opaque": False, "redirect": True}}
    ways: dict[str, Any] = {"forward": "redirect", "policy": "sticky"}
    with balancer(cluster, "redirects", None, None, listeners=listeners, connect_timeout_s=2.0, **ways) as (_, ports):
        known = {f"127.0.0.1:{cluster.port(number, 'plain')}" for number in range(3)}
        for name in ("a", "b", "c"):
            with socket.create_connection(("127.0.0.1", ports["plain"]), PATIENCE_S) as client:
                client.sendall(encode_packet(Connect(name), 5))
                [answer] = StreamDecoder(5).feed(client.recv(1000))
                assert isinstance(answer, Connack) and answer.reason_code == ReasonCode.USE_ANOTHER_SERVER
                assert answer.properties[PropertyId.SERVER_REFERENCE] in known
        assert refused(ports["plain"], encode_packet(Connect("old", protocol_version=4), 4))
        assert refused(ports["plain"], b"\x10")
        assert status_of(cluster, "redirects")["refused"] == {"not_redirected": 1, "silent": 1}


def test_systemd_sockets_matched_by_name(cluster: LocalCluster) -> None:
    """LISTEN_FDS: this process does not bind the address, and the address outlives it."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as given:
        listeners = {"plain": {"port": 1, "opaque": False}}
        with balancer(cluster, "activated", given=given, listeners=listeners) as (process, _):
            client = connect(port, "activated")
            process.kill()
            process.wait()
            assert alive([client]) == 1
            waiting = socket.create_connection(("127.0.0.1", port), PATIENCE_S)  # in the backlog of the next process
            close([client, waiting])


def refused(port: int, data: bytes) -> bool:
    """Return whether a connection is closed without a word."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        client.sendall(data)
        try:
            return client.recv(10) == b""
        except ConnectionResetError:
            return True


def test_other_balancers_get_edges_of_map(cluster: LocalCluster, tmp_path: Path) -> None:
    """Once, and in a followed file, with a command after each change, at most once a second."""
    rendered = cluster.command(
        "balance", "render", "haproxy", "--data", str(cluster.data), "--bind", "127.0.0.1:1"
    ).stdout
    assert [line.split()[1] for line in rendered.splitlines() if line.startswith("    server ")] == list(EDGES)
    file, mark = tmp_path / "nginx.conf", tmp_path / "mark"
    command = ["balance", "render", "nginx", "--data", str(cluster.data), "--watch", str(file)]
    command += ["--exec", f"sh -c 'date +%s.%N >> {mark}'"]
    watching = subprocess.Popen([*cluster.command_line(), *command], stdout=subprocess.DEVNULL)
    try:
        wait_until(mark.exists)
        assert file.read_text().count("max_fails=1") == 3
        for order, edges in (("drain", 2), ("undrain", 3)):
            cluster.admin("node", order, "edge-2", *(("--no-wait",) if order == "drain" else ()))
            wait_until(lambda edges=edges: file.read_text().count("max_fails=1") == edges)  # type: ignore[misc]
        wait_until(lambda: len(mark.read_text().splitlines()) == 3)
        first, *others = map(float, mark.read_text().splitlines())
        time.sleep(2.5)  # it keeps polling, and the map does not change
        assert len(mark.read_text().splitlines()) == 3
    finally:
        watching.kill()
        watching.wait()
    assert all(later - sooner > 0.9 for sooner, later in zip([first, *others], others, strict=False))
    assert file.read_text().count("max_fails=1") == 3 and not file.with_name("nginx.conf.new").exists()


def served(port: int) -> bytes:
    """Return the certificate that a handshake shows now."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as plain, context.wrap_socket(plain) as secure:
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def test_certificates_replaced_at_signal(cluster: LocalCluster, tmp_path: Path) -> None:
    """Handshakes use the new one, connected clients stay, and an invalid file keeps the old state."""
    files = [DevelopmentAuthority(tmp_path / name, "test", NOW).server("door") for name in ("old", "new")]
    certificate, key = tmp_path / "door.pem", tmp_path / "door.key"

    def install(number: int) -> None:
        for source, target in ((files[number].certificate, certificate), (files[number].key, key)):
            shutil.copy(source, target)
            target.chmod(0o600)

    install(0)
    listeners = {"plain": {"port": free_port(), "opaque": False, "certificate": str(certificate), "key": str(key)}}
    with balancer(cluster, "reloads", listeners=listeners, forward="relay") as (process, ports):
        context = ssl.create_default_context(cafile=files[0].authority)
        context.check_hostname = False
        stays = [connect(ports["plain"], "stays", context)]
        before = served(ports["plain"])
        install(1)
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: served(ports["plain"]) != before)
        after = served(ports["plain"])
        certificate.write_text("no certificate")
        process.send_signal(signal.SIGHUP)
        for _ in range(20):
            assert served(ports["plain"]) == after
        assert alive(stays) == 1 and process.poll() is None
        close(stays)


def test_client_connects_beside_idle_connections(cluster: LocalCluster) -> None:
    """More silent connections than the balancer holds: a new client displaces the oldest of them."""
    listeners = {"plain": {"port": free_port(), "opaque": False}}
    with balancer(cluster, "crowded", listeners=listeners, forward="relay", policy="sticky", connections_max=10) as (
        _,
        ports,
    ):
        idle = [socket.create_connection(("127.0.0.1", ports["plain"]), PATIENCE_S) for _ in range(40)]
        clients = [connect(ports["plain"], f"crowded-{number}") for number in range(3)]
        assert alive(clients) == 3
        close([*idle, *clients])
