"""Hostile bytes on the ports of links, with real certificates: they end a connection, never a process."""

import contextlib
import datetime
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtt.codec import encode_packet
from mqtt.packets import Connect, Subscribe, SubscriptionRequest
from tests.e2e.extra_edge import extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.idle_connections import idle_connections
from tests.patience import PATIENCE_S
from wire.links.authority import DevelopmentAuthority
from wire.links.tls import CertificateFiles, link_contexts
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import encode_control
from wire.messages.frames import HEADER, HEADER_BYTES, PROTOCOL_VERSION, FrameKind
from wire.messages.hello import NodeIdentity, encode_hello
from wire.messages.nodes import FollowMap, Heartbeat, RegisterRequest

CLUSTER = "stratamq"
NODES = ("edge-0", "router-0", "storage-0")
# a HELLO that decodes except for the nested value of an unknown field
NESTED = b"\x82\xa7version\x01\xa1z" + b"\x91" * 3900
NESTED_CONTROL = b"\x82\xa4type\xa9FollowMap\xa1z" + b"\x91" * 10_000
STRANGERS = 400
AT_ONCE_S = 3.0  # below the timeout of a HELLO, and enough for a busy machine


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--edges", "1", "--storages", "1", "--routers", "1") as running:
        yield running


def authority(cluster: LocalCluster) -> DevelopmentAuthority:
    """Return the authority that signed the cluster's nodes."""
    return DevelopmentAuthority(cluster.data / "tls", CLUSTER, datetime.datetime.now(datetime.UTC))


def connect(cluster: LocalCluster, node: str, files: CertificateFiles) -> ssl.SSLSocket:
    """Open a connection to a node's port of links."""
    host, port = cluster.state["nodes"][node]["addresses"]["link"].rsplit(":", 1)
    plain = socket.create_connection((host, int(port)), PATIENCE_S)
    return link_contexts(files).client.wrap_socket(plain, server_hostname="stratamq")


def frame(kind: int, payload: bytes, number: int = 0) -> bytes:
    return HEADER.pack(len(payload), kind, 0, PROTOCOL_VERSION, number) + payload


def registered_link(cluster: LocalCluster, node: str, tier: str, name: str, incarnation: int) -> ssl.SSLSocket:
    """Return a link to an edge or a storage node of a registered thief, as required. It lives for a lease."""
    files = authority(cluster).node(tier, name)
    hello = encode_hello(NodeIdentity(CLUSTER, name, tier, incarnation, "127.0.0.1:1"))
    until = time.monotonic() + PATIENCE_S
    while True:
        with connect(cluster, "router-0", files) as router:
            router.sendall(hello)
            entry = NodeEntry(name, tier, incarnation, "127.0.0.1:1")
            router.sendall(frame(FrameKind.CONTROL, encode_control(RegisterRequest(1, entry)), 1))
            for _ in range(20):
                link = connect(cluster, node, files)
                link.settimeout(AT_ONCE_S)
                link.sendall(hello)
                with contextlib.suppress(OSError):
                    if link.recv(HEADER_BYTES):
                        return link
                link.close()
                assert time.monotonic() < until, "no link"
                time.sleep(0.05)  # the node's map may be older


def is_closed(connection: socket.socket, seconds: float = AT_ONCE_S) -> bool:
    """Return whether the other side closes within a time; earlier input is discarded."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            if not connection.recv(65_536):
                return True
        except TimeoutError:
            return False
        except OSError:
            return True
    return False


def pids(cluster: LocalCluster) -> dict[str, int]:
    return {node: cluster.pid(node) for node in NODES}


def alive(cluster: LocalCluster, node: str) -> None:
    """The node's loop answers, and so does the process that serves its page."""
    assert Path(f"/proc/{cluster.pid(node)}").exists()
    assert "stratamq" in cluster.metrics(node)


@pytest.mark.parametrize("node", NODES)
def test_client_certificate_refused_before_hello(cluster: LocalCluster, node: str) -> None:
    """Refused after the handshake: no HELLO was sent."""
    before = pids(cluster)
    with connect(cluster, node, authority(cluster).client("client")) as stranger:
        assert is_closed(stranger)
    with connect(cluster, node, authority(cluster).client("client")) as stranger:
        with contextlib.suppress(OSError):
            stranger.sendall(frame(FrameKind.HELLO, NESTED))
        assert is_closed(stranger)
    alive(cluster, node)
    assert pids(cluster) == before


@pytest.mark.parametrize("node", NODES)
def test_nested_hello_of_a_node(cluster: LocalCluster, node: str) -> None:
    """Refused despite a node's certificate."""
    before = pids(cluster)
    with connect(cluster, node, authority(cluster).node("edge", "edge-8")) as link:
        link.sendall(frame(FrameKind.HELLO, NESTED))
        assert is_closed(link)
    alive(cluster, node)
    assert pids(cluster) == before


@pytest.mark.parametrize("node", NODES)
def test_nested_control_of_a_node(cluster: LocalCluster, node: str) -> None:
    """Its link is closed; this incarnation of the sender stays refused, the next one is accepted."""
    before = pids(cluster)
    name = f"edge-for-{node}"
    files = authority(cluster).node("edge", name)
    for incarnation, welcome in ((5, True), (5, False), (6, True)):
        if welcome and node != "router-0":
            link = registered_link(cluster, node, "edge", name, incarnation)
            link.sendall(frame(FrameKind.CONTROL, NESTED_CONTROL, 1))
        else:
            link = connect(cluster, node, files)
            link.sendall(encode_hello(NodeIdentity(CLUSTER, name, "edge", incarnation, "127.0.0.1:1")))
            link.settimeout(AT_ONCE_S)
            with contextlib.suppress(OSError):
                answer = link.recv(HEADER_BYTES)
                assert bool(answer) == welcome, answer
                if welcome:
                    link.sendall(frame(FrameKind.CONTROL, NESTED_CONTROL, 1))
        with link:
            assert is_closed(link)
        alive(cluster, node)
    assert pids(cluster) == before


ENDED = "stratamq_admission_ended_total"
BEGUN = b"\x16\x03\x01"  # of a ClientHello
ELSEWHERE = tuple(f"127.0.7.{number}" for number in range(1, 5))


@pytest.mark.parametrize(
    ("sources", "sent"),
    [
        pytest.param(("127.0.0.1",), b"", id="of the nodes' own address, silent"),
        pytest.param(ELSEWHERE, b"", id="of four others, silent", marks=pytest.mark.slow),
        pytest.param(("127.0.0.1",), BEGUN, id="of the nodes' own address, begun", marks=pytest.mark.slow),
        pytest.param(ELSEWHERE, BEGUN, id="of four others, begun", marks=pytest.mark.slow),
    ],
)
def test_operators_and_nodes_connect_beside_idle_connections(
    cluster: LocalCluster, sources: tuple[str, ...], sent: bytes
) -> None:
    """400 connections at each link port, reopened when closed: status, and a restart."""
    with contextlib.ExitStack() as stack:
        for node in NODES:
            host, port = cluster.state["nodes"][node]["addresses"]["link"].rsplit(":", 1)
            stack.enter_context(idle_connections((host, int(port)), STRANGERS, sources, sent))
            cluster.wait_for(lambda node=node: refused(cluster, node) > 50, f"strangers refused by {node}", 20)  # type: ignore[misc]
        for _ in range(3):
            cluster.admin("cluster", "status")
        before = cluster.pid("edge-0")
        cluster.kill("edge-0")
        cluster.wait_for(lambda: cluster.is_started_again("edge-0", before), "the edge is back", 30)
    for node in NODES:
        alive(cluster, node)


def refused(cluster: LocalCluster, node: str) -> float:
    """Return how many connections a node refused a place, or displaced."""
    lines = [line for line in cluster.metrics(node).splitlines() if line.startswith(f"{ENDED}{{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_link_certificates_refused_as_mqtt_clients(cluster: LocalCluster, tmp_path: Path) -> None:
    """Certificates of nodes and operators, of either authority, get 0x87; those of clients and gateways are accepted.

    `$gateway/` is reserved for gateways.
    """
    devices = DevelopmentAuthority(tmp_path / "devices", "devices", datetime.datetime.now(datetime.UTC))
    mutual = {"tls": True, "client_ca": str(devices.certificate), "require_client_certificate": True}
    with extra_edge(cluster, {"mutual": mutual}) as edge:
        answers, granted = {}, {}
        for name, files in (
            ("client", devices.client("device")),
            ("edge", devices.node("edge", "edge-1")),
            ("operator", devices.operator()),
            ("false gateway", devices.gateway("bridge")),
            ("gateway", authority(cluster).gateway("bridge")),
            ("node", authority(cluster).node("edge", "edge-1")),
            ("plain", authority(cluster).client("client")),
        ):
            context = ssl.create_default_context(cafile=cluster.authority)
            context.load_cert_chain(files.certificate, files.key)
            plain = socket.create_connection(("127.0.0.1", edge.port("mutual")), PATIENCE_S)
            with context.wrap_socket(plain, server_hostname="localhost") as caller:
                caller.sendall(encode_packet(Connect(name), 5))
                answers[name] = caller.recv(100)[3]
                if answers[name] == 0:
                    wanted = Subscribe(1, [SubscriptionRequest("$gateway/#"), SubscriptionRequest("a/#")])
                    caller.sendall(encode_packet(wanted, 5))
                    granted[name] = caller.recv(100)[-2:]
        refused = dict.fromkeys(("edge", "operator", "false gateway", "node", "plain"), 0x87)
        assert answers == {"client": 0, "gateway": 0, **refused}
        assert granted == {"client": b"\x87\x00", "gateway": b"\x00\x00"}
        assert edge.events(cluster)["certificates_of_nodes_refused"] == 5


@pytest.mark.parametrize("node", NODES)
def test_gateway_follows_map_only_at_routers(cluster: LocalCluster, node: str) -> None:
    """Edges and storage nodes close after the handshake, a router at the first message that is reserved for nodes."""
    files = authority(cluster).gateway(f"g-{node}")
    with connect(cluster, node, files) as link:
        if node != "router-0":
            assert is_closed(link)
            return
        link.sendall(encode_hello(NodeIdentity(CLUSTER, f"g-{node}", "gateway", 5)))
        link.sendall(frame(FrameKind.CONTROL, encode_control(FollowMap(0)), 1))
        link.settimeout(AT_ONCE_S)
        received = b""
        while b"MapPage" not in received:
            received += link.recv(65_536)
        link.sendall(frame(FrameKind.CONTROL, encode_control(Heartbeat(f"g-{node}", 5, 1.0, 1)), 2))
        assert is_closed(link)
    alive(cluster, node)
