"""A client's connection that another process accepted goes to an edge, with its TLS, its address and its limits."""

import os
import socket
import ssl
import sys
import time
from collections.abc import Iterator

import pytest

from mqtt.codec import encode_packet
from mqtt.packets import Connect, Pingreq
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.patience import PATIENCE_S
from wire.clock import boot_time
from wire.messages.socket_handoff import HandoffReply, encode_hand_over

CONNACK_OK, PINGRESP = 0, b"\xd0\x00"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--edges", "1", "--storages", "1", "--routers", "1") as running:
        yield running


def accepted() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a new connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), PATIENCE_S)
        return client, server.accept()[0]


def balancer(cluster: LocalCluster) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(PATIENCE_S)
    connection.connect(str(cluster.data / "edge-0" / "hand-over.sock"))
    return connection


def offer(to: socket.socket, given: socket.socket, listener: str) -> HandoffReply:
    now = int(boot_time() * 1000)
    rights = given.fileno().to_bytes(4, sys.byteorder)
    to.sendmsg([encode_hand_over(listener, now, now)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    return HandoffReply(to.recv(2)[0])


def test_clients_stay_when_balancer_is_gone(cluster: LocalCluster) -> None:
    """In clear and with TLS from end to end."""
    context = ssl.create_default_context(cafile=cluster.authority)
    clients = []
    with balancer(cluster) as process:
        for number, listener in enumerate(("plain", "tls", "plain")):
            client, given = accepted()
            client.settimeout(PATIENCE_S)
            with given:
                assert offer(process, given, listener) is HandoffReply.TAKEN
            if listener == "tls":
                client = context.wrap_socket(client, server_hostname="localhost")
            client.sendall(encode_packet(Connect(f"c{number}"), 5))
            assert client.recv(100)[3] == CONNACK_OK
            clients.append(client)
        client, given = accepted()
        with client, given:
            assert offer(process, given, "nothing") is HandoffReply.NO_LISTENER
    for client in clients:
        client.sendall(encode_packet(Pingreq(), 5))
        assert client.recv(2) == PINGRESP
    clients[0].sendall(encode_packet(Connect("again"), 5))  # [MQTT-3.1.0-2]
    while clients[0].recv(100):
        pass
    for client in clients:
        client.close()
    counts = cluster.events_at(cluster.state["nodes"]["edge-0"]["addresses"]["metrics"])
    assert (counts["handed_over_taken"], counts["handed_over_no_listener"]) == (3, 1)


def test_stopping_edge_accepts_no_client(cluster: LocalCluster) -> None:
    """A stopping edge reports it, then removes its socket; another process takes its place."""
    pid = cluster.pid("edge-0")
    client, given = accepted()
    answers = set()
    with client, given, balancer(cluster) as process:
        assert offer(process, given, "nothing") is HandoffReply.NO_LISTENER
        os.kill(pid, 15)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                answers.add(offer(process, given, "nothing"))
            except (OSError, IndexError):  # closed
                break
        else:
            pytest.fail("the edge goes on answering")
    assert answers <= {HandoffReply.NO_LISTENER, HandoffReply.NOT_READY}
