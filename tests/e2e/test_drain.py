"""`stratamq node drain` of an edge: not ready, then refusing, then letting clients go; `undrain` opens it again."""

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.e2e.local_cluster import LocalCluster, local_cluster

TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--edges", "2") as running:
        yield running


def connected(cluster: LocalCluster, level: int, client_id: str) -> socket.socket:
    """Return a connection to edge-1 that has its CONNACK."""
    stream = socket.create_connection(("127.0.0.1", cluster.port(1, "plain")), TIMEOUT_S)
    body = b"\x00\x04MQTT" + bytes([level, 2, 0, 60]) + b"\x00" * (level == 5)
    body += len(client_id).to_bytes(2, "big") + client_id.encode()
    stream.sendall(bytes([0x10, len(body)]) + body)
    answer = stream.recv(1000)
    assert answer[0] == 0x20 and answer[3] == 0, answer
    return stream


def is_refused(cluster: LocalCluster) -> bool:
    """Return whether nothing listens at edge-1."""
    try:
        socket.create_connection(("127.0.0.1", cluster.port(1, "plain")), TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    return False


def readiness(cluster: LocalCluster) -> tuple[int, str]:
    """Return status and text of /readyz of edge-1."""
    address = cluster.state["nodes"]["edge-1"]["addresses"]["metrics"]
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=TIMEOUT_S) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def state(cluster: LocalCluster) -> str:
    """Return what `node list` says of edge-1."""
    nodes = cluster.admin("node", "list")["nodes"]
    return str(next(node["state"] for node in nodes if node["node"] == "edge-1"))


def rest(stream: socket.socket) -> bytes:
    """Return what comes until the edge closes."""
    with stream:
        return b"".join(iter(lambda: stream.recv(1000), b""))


def drained(cluster: LocalCluster) -> dict[str, float]:
    """Return edge_drained_clients_total of edge-1 by how."""
    found = re.findall(r'edge_drained_clients_total\{how="(\w+)"\} (\S+)', cluster.metrics("edge-1"))
    return {how: float(count) for how, count in found}


def test_an_edge_is_emptied_and_opened_again(cluster: LocalCluster) -> None:
    """503 while connections are still taken, then refused, then 0x9C for MQTT 5 and a close for 3.1.1; and all back."""
    new, old = connected(cluster, 5, "new"), connected(cluster, 4, "old")
    cluster.admin("node", "drain", "edge-1")
    cluster.wait_for(lambda: readiness(cluster)[0] == 503, "not ready", TIMEOUT_S)
    connected(cluster, 5, "late").close()  # a balancer that has not looked yet finds an open door
    assert rest(new)[:3] in (b"\xe0\x01\x9c", b"\xe0\x02\x9c")
    assert rest(old) == b""
    cluster.wait_for(lambda: is_refused(cluster), "refusing", TIMEOUT_S)
    cluster.wait_for(lambda: "drained" in readiness(cluster)[1], "drained", TIMEOUT_S)
    cluster.wait_for(lambda: state(cluster) == "drained", "drained in the list", TIMEOUT_S)
    assert drained(cluster) == {"told": 1.0, "closed": 1.0}
    cluster.admin("node", "undrain", "edge-1")
    cluster.wait_for(lambda: readiness(cluster)[0] == 200, "ready again", TIMEOUT_S)
    cluster.wait_for(lambda: not is_refused(cluster), "open again", TIMEOUT_S)
    stays = connected(cluster, 5, "again")
    stays.settimeout(1.0)
    with stays, pytest.raises(TimeoutError):
        stays.recv(1)
    assert state(cluster) == "active"


def test_a_drain_that_is_taken_back_lets_nobody_go(cluster: LocalCluster) -> None:
    """`undrain` before the doors shut: whoever is connected stays."""
    before = drained(cluster)
    with connected(cluster, 5, "stays") as stays:
        cluster.admin("node", "drain", "edge-1")
        cluster.admin("node", "undrain", "edge-1")
        cluster.wait_for(lambda: readiness(cluster)[0] == 200, "ready", TIMEOUT_S)
        stays.settimeout(4.0)  # longer than the edge would have waited to refuse
        with pytest.raises(TimeoutError):
            stays.recv(1)
    assert drained(cluster) == before and not is_refused(cluster)
