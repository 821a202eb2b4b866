"""One door in front of three edges: clients come in, outlive the balancer, and never meet an edge that is gone."""

import contextlib
import datetime
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtt.codec import encode_packet
from mqtt.packets import Connect, Pingreq
from stratamq.toml_text import toml_document
from tests.e2e.local_cluster import LocalCluster, local_cluster
from wire.links.authority import DevelopmentAuthority

PINGRESP = b"\xd0\x00"
EDGES = ("edge-0", "edge-1", "edge-2")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--edges", "3", "--storages", "1", "--routers", "1", "--balance") as running:
        running.wait_for(lambda: len(candidates(running)) == 6, "six candidates")
        yield running


def status(cluster: LocalCluster) -> dict[str, Any]:
    return cluster.admin("balance", "status")


def candidates(cluster: LocalCluster) -> list[dict[str, Any]]:
    return [row for row in status(cluster)["edges"] if row["state"] == "candidate"]


def door(cluster: LocalCluster, listener: str = "plain") -> int:
    return int(cluster.state["listeners"]["balance-0"][listener])


def connect(port: int, name: str, context: ssl.SSLContext | None = None) -> socket.socket:
    """Return the connection of a client that got CONNACK 0."""
    client = socket.create_connection(("127.0.0.1", port), 10)
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
    return {row["edge"]: row["picks"] for row in status(cluster)["edges"] if row["listener"] == "plain"}


def close(clients: list[socket.socket]) -> None:
    for client in clients:
        client.close()


def test_clients_are_handed_over_and_outlive_the_balancer(cluster: LocalCluster) -> None:
    """In turn to the emptiest edge; kill -9 of the balancer ends none of them."""
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


def test_no_connect_fails_when_an_edge_is_killed(cluster: LocalCluster) -> None:
    """Its last pick is an attempt that the client never hears of; it is used again when it is back."""
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


def extra_balancer(
    cluster: LocalCluster, name: str, gossip: dict[str, Any] | None = None, **room: Any
) -> subprocess.Popen[bytes]:
    """Start one more balancer over the cluster, with listeners of a test's own."""
    authority = DevelopmentAuthority(cluster.data / "tls", "stratamq", datetime.datetime.now(datetime.UTC))
    own = authority.gateway(name)
    node = {
        "id": name,
        "data_dir": cluster.data / name,
        "seeds": cluster.state["routers"],
        "certificate": own.certificate,
        "key": own.key,
        "authority": own.authority,
    }
    config = cluster.data / f"{name}.toml"
    rooms: dict[str, dict[str, Any]] = {"node": node, "balance": room}
    config.write_text(toml_document(rooms | ({"membership": gossip} if gossip else {})))
    command = [*cluster.command_line(), "balance", "--config", str(config)]
    return subprocess.Popen(command, start_new_session=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def other(cluster: LocalCluster) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, int], Path]]:
    """A balancer that relays or redirects, and ends TLS at one listener."""
    ports = {"plain": free_port(), "tls": free_port()}
    listeners = {
        "plain": {"port": ports["plain"], "opaque": False, "redirect": True},
        "tls": {"port": ports["tls"]},
    }
    process = extra_balancer(cluster, "other", listeners=listeners, forward="relay", policy="round_robin")
    config = cluster.data / "other.toml"
    try:
        wait_until(lambda: cluster.command("balance", "status", "--config", str(config)).returncode == 0)
        wait_until(lambda: can_connect(ports["tls"]))
        yield process, ports, config
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_until(condition: Any, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_a_relay_carries_tls_and_ends_in_order(
    cluster: LocalCluster, other: tuple[subprocess.Popen[bytes], dict[str, int], Path]
) -> None:
    """Round robin is exact; what is no MQTT is closed; SIGTERM waits for relayed connections."""
    process, ports, _ = other
    context = ssl.create_default_context(cafile=cluster.authority)
    clients = [connect(ports["plain"], f"relayed{n}") for n in range(6)]
    secured = connect(ports["tls"], "relayed-tls", context)
    with socket.create_connection(("127.0.0.1", ports["plain"]), 10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(10) == b""
    answer = cluster.command("balance", "status", "--config", str(other[2]), "-o", "json").stdout
    assert '"not_mqtt": 1' in answer and '"relayed": 7' in answer
    assert alive([*clients, secured]) == 7
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: not can_connect(ports["plain"]))
    assert alive([*clients, secured]) == 7
    close([*clients, secured])
    assert process.wait(20) == 0


def test_other_balancers_get_the_edges_of_the_map(cluster: LocalCluster, tmp_path: Path) -> None:
    """Once, and in a file that is kept, with a command behind each change."""
    said = cluster.command("balance", "render", "haproxy", "--data", str(cluster.data), "--bind", "127.0.0.1:1").stdout
    assert [line.split()[1] for line in said.splitlines() if line.startswith("    server ")] == list(EDGES)
    file, mark = tmp_path / "nginx.conf", tmp_path / "mark"
    command = ["balance", "render", "nginx", "--data", str(cluster.data), "--watch", str(file)]
    watching = subprocess.Popen(
        [*cluster.command_line(), *command, "--exec", f"touch {mark}"], stdout=subprocess.DEVNULL
    )
    try:
        wait_until(mark.exists)
    finally:
        watching.kill()
        watching.wait()
    assert file.read_text().count("max_fails=1") == 3 and not file.with_name("nginx.conf.new").exists()
