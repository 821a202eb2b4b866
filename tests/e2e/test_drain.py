"""`stratamq node drain` of an edge: not ready, then refusing, then letting clients go; `undrain` opens it again."""

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from stratamq.cli.node_requests import ask_links
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.patience import PATIENCE_S

TIMEOUT_S = PATIENCE_S


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--edges", "2") as running:
        yield running


def connected(
    cluster: LocalCluster, level: int, client_id: str, flags: int = 2, properties: bytes = b"", rest: bytes = b""
) -> socket.socket:
    """Return a connection to edge-1 that has its CONNACK."""
    stream = socket.create_connection(("127.0.0.1", cluster.port(1, "plain")), TIMEOUT_S)
    body = b"\x00\x04MQTT" + bytes([level, flags, 0, 60]) + (bytes([len(properties)]) + properties) * (level == 5)
    body += len(client_id).to_bytes(2, "big") + client_id.encode() + rest
    stream.sendall(bytes([0x10, len(body)]) + body)
    answer = stream.recv(1000)
    assert answer[0] == 0x20 and answer[3] == 0, answer
    return stream


def is_refused(cluster: LocalCluster) -> bool:
    """Return whether edge-1 refuses connections."""
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
    """Return the state of edge-1 in `node list`."""
    nodes = cluster.admin("node", "list")["nodes"]
    return str(next(node["state"] for node in nodes if node["node"] == "edge-1"))


def rest(stream: socket.socket) -> bytes:
    """Return the bytes received until the edge closes."""
    with stream:
        return b"".join(iter(lambda: stream.recv(1000), b""))


def drained(cluster: LocalCluster) -> dict[str, float]:
    """Return edge_drained_clients_total of edge-1 by how."""
    found = re.findall(r'edge_drained_clients_total\{how="(\w+)"\} (\S+)', cluster.metrics("edge-1"))
    return {how: float(count) for how, count in found}


def test_edge_drained_and_undrained(cluster: LocalCluster) -> None:
    """503 while it still accepts, then refused, then 0x9C for MQTT 5 and a close for 3.1.1; undrain restores all."""
    new, old = connected(cluster, 5, "new"), connected(cluster, 4, "old")
    cluster.admin("node", "drain", "edge-1", "--no-wait")
    cluster.wait_for(lambda: readiness(cluster)[0] == 503, "not ready", TIMEOUT_S)
    connected(cluster, 5, "late").close()  # a balancer with an old readiness result can still connect
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


def test_undrain_before_refusal_closes_no_client(cluster: LocalCluster) -> None:
    """`undrain` before the listeners close: connected clients stay."""
    before = drained(cluster)
    with connected(cluster, 5, "stays") as stays:
        for verb in ("node drain", "node undrain"):  # two commands of their own would come too late on a busy machine
            assert ask_links(verb, {"node": "edge-1"}, "", cluster.data).ok
        cluster.wait_for(lambda: readiness(cluster)[0] == 200, "ready", TIMEOUT_S)
        stays.settimeout(4.0)  # longer than the edge would have waited to refuse
        with pytest.raises(TimeoutError):
            stays.recv(1)
    assert drained(cluster) == before and not is_refused(cluster)


def test_drain_forecasts_and_redirects_clients(cluster: LocalCluster) -> None:
    """The forecast counts wills and sessions, a dry run changes no state, and MQTT 5 clients get the other edge."""
    will = b"\x00" + b"\x00\x01w" + b"\x00\x01x"
    plain, old = connected(cluster, 5, "plain"), connected(cluster, 4, "older")
    dying = connected(cluster, 5, "dying", flags=0x06, rest=will)
    durable = connected(cluster, 5, "durable", flags=0, properties=b"\x11\x00\x00\x01\x00")
    forecast = cluster.admin("node", "drain", "edge-1", "--dry-run", "--rate", "1000/s")
    counts = {name: forecast[name] for name in ("clients", "wills", "sessions", "rate")}
    assert counts == {"clients": 4, "wills": 1, "sessions": 1, "rate": 1000}
    assert readiness(cluster)[0] == 200
    done = cluster.admin("node", "drain", "edge-1", "--rate", "1000/s", "--redirect")
    assert done["left"] == 0 and state(cluster) == "drained"
    other = f"127.0.0.1:{cluster.port(0, 'plain')}".encode()
    for stream in (plain, dying, durable):
        assert rest(stream)[2:] == b"\x9c" + bytes([len(other) + 3]) + b"\x1c" + len(other).to_bytes(2, "big") + other
    assert rest(old) == b""
    cluster.admin("node", "undrain", "edge-1")
    cluster.wait_for(lambda: not is_refused(cluster), "open again", TIMEOUT_S)


def test_interrupted_drain_is_undone(cluster: LocalCluster) -> None:
    """Ctrl-C: remaining clients stay, and the command reports their number."""
    streams = [connected(cluster, 5, f"many-{number}") for number in range(20)]
    before = drained(cluster)["told"]
    command = [sys.executable, "-m", "stratamq", "node", "drain", "edge-1", "--rate", "1", "--data", str(cluster.data)]

    def heed() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background shell starts tests with SIGINT ignored

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed) as process:
        assert process.stderr is not None
        assert "20 clients, disconnected at 1/s (20 s)" in process.stderr.readline()
        cluster.wait_for(lambda: drained(cluster)["told"] >= before + 3, "some are gone", TIMEOUT_S)
        process.send_signal(signal.SIGINT)
        assert re.search(r"cancelled: \d+ of 20 clients remain at edge-1", process.stderr.read())
        assert process.wait(PATIENCE_S) == 130
    cluster.wait_for(lambda: readiness(cluster)[0] == 200 and not is_refused(cluster), "open again", TIMEOUT_S)
    for stream in streams:
        stream.close()


@pytest.mark.parametrize("rate", ["x", "-1", "2/m", "1000000"])
def test_invalid_rate_refused(cluster: LocalCluster, rate: str) -> None:
    command = [sys.executable, "-m", "stratamq", "node", "drain", "edge-1", "--rate", rate, "--data", str(cluster.data)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1 and readiness(cluster)[0] == 200
