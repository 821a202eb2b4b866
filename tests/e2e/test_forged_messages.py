"""A stolen node certificate: messages in the name of other nodes have no effect, and close its link."""

import contextlib
import itertools
import os
import re
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest

from router.raft import messages as raft
from tests.clients import packets
from tests.clients.blocking import BlockingClient
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_hostile_links import CLUSTER, authority, connect, frame, is_closed, registered_link
from tests.patience import PATIENCE_S
from wire.messages.batches import Push, encode_publish_ack, encode_push
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import Control, encode_control
from wire.messages.frames import HEADER_BYTES, FrameKind
from wire.messages.hello import NodeIdentity, encode_hello
from wire.messages.nodes import Heartbeat, RegisterRequest
from wire.messages.routes import RemoveRoutes, ReportRoutes, SenderReport
from wire.messages.sessions import Claims

LIFE = time.time_ns() // 1_000_000  # an incarnation, as nodes number theirs
PUBACK = packets.ack(0x40, 9)
FLOOD_S = 15.0  # several leases
FRAMES_AT_ONCE = 500
FLOOD_MIB = 128  # answers that the flooding node does not read: 32 MiB of small frames, three times that as objects
FORGED_S = 1.0  # how long a forged acknowledgement may take; it came after 4 ms


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--edges", "1", "--storages", "1", "--routers", "1") as running:
        yield running


def link(cluster: LocalCluster, node: str, tier: str, name: str) -> ssl.SSLSocket:
    """Open a link with a certificate that the cluster's own authority made."""
    if tier == "edge" and not node.startswith("router"):
        return registered_link(cluster, node, tier, name, LIFE)
    files = authority(cluster).operator(name) if tier == "operator" else authority(cluster).node(tier, name)
    connection = connect(cluster, node, files)
    connection.sendall(encode_hello(NodeIdentity(CLUSTER, name, tier, LIFE, "127.0.0.1:1")))
    if tier != "operator" and not (tier == "storage" and node.startswith("edge")):  # no storage node dials an edge
        connection.settimeout(PATIENCE_S)
        assert connection.recv(HEADER_BYTES)[4] == FrameKind.HELLO  # accepted: later messages are validated by content
    return connection


def control(message: Control, number: int = 1) -> bytes:
    return frame(FrameKind.CONTROL, encode_control(message), number)


def incarnation(cluster: LocalCluster, node: str) -> int:
    nodes = cluster.admin("node", "list")["nodes"]
    entry = nodes[node] if isinstance(nodes, dict) else next(one for one in nodes if one["node"] == node)
    return int(entry["incarnation"])


def test_edge_certificate_registers_as_edge_only(cluster: LocalCluster) -> None:
    """An edge registered as "router" got half of the shards, and half of all SUBSCRIBEs hung."""
    with link(cluster, "router-0", "edge", "edge-9") as stolen:
        entry = NodeEntry("edge-9", "router", LIFE, "127.0.0.1:1")
        stolen.sendall(control(RegisterRequest(1, entry)))
        assert is_closed(stolen)
    assert "edge-9" not in str(cluster.admin("node", "list"))


def test_forget_frees_name_with_far_future_incarnation(
    cluster: LocalCluster,
) -> None:
    """A stolen certificate locked out the node of its name permanently, even after its revocation."""

    def come(incarnation: int) -> ssl.SSLSocket:
        stolen = connect(cluster, "router-0", authority(cluster).node("edge", "edge-12"))
        stolen.sendall(encode_hello(NodeIdentity(CLUSTER, "edge-12", "edge", incarnation, "127.0.0.1:1")))
        stolen.settimeout(PATIENCE_S)
        return stolen

    far = LIFE + 365 * 86_400_000
    with come(far) as stolen:
        assert stolen.recv(HEADER_BYTES)[4] == FrameKind.HELLO
        stolen.sendall(control(RegisterRequest(1, NodeEntry("edge-12", "edge", far, "127.0.0.1:1"))))
        cluster.wait_for(lambda: "edge-12" in str(cluster.admin("node", "list")), "registered")
    with come(LIFE) as owner:
        assert is_closed(owner)
    forget = ("cluster", "forget", "edge-12", "--yes", "--data", str(cluster.data))
    cluster.wait_for(lambda: cluster.command(*forget).returncode == 0, "forgotten, when it is dead")
    cluster.wait_for(lambda: "edge-12" not in str(cluster.admin("node", "list")), "forgotten")
    with come(LIFE) as owner:
        assert owner.recv(HEADER_BYTES)[4] == FrameKind.HELLO


def test_partition_report_of_edge_refused(cluster: LocalCluster) -> None:
    """An empty report erased every stored subscriber of a partition."""
    with link(cluster, "router-0", "edge", "edge-10") as stolen:
        reports = [SenderReport(partition, 1, 10**9, []) for partition in range(256)]
        stolen.sendall(control(ReportRoutes(0, 1, reports)))
        assert is_closed(stolen)


def test_heartbeat_for_another_node_refused(cluster: LocalCluster) -> None:
    """A hung storage node's lease was kept for 12 s."""
    life = incarnation(cluster, "storage-0")
    with link(cluster, "router-0", "storage", "storage-9") as stolen:
        stolen.sendall(control(Heartbeat("storage-0", life, time.monotonic(), 10**6)))
        assert is_closed(stolen)
    assert 'event="refused_identity"' in cluster.metrics("router-0")


def test_operator_push_to_edge_refused(cluster: LocalCluster) -> None:
    """It became a permanent peer, and could acknowledge and push; it may only query."""
    with link(cluster, "edge-0", "operator", "operator") as stolen:
        stolen.sendall(frame(FrameKind.PUBLISH_ACK, encode_publish_ack(1, 1, 0), 1))
        assert is_closed(stolen)


@pytest.mark.parametrize("node", ["edge-0", "storage-0"])
def test_link_to_router_only_node_refused(cluster: LocalCluster, node: str) -> None:
    """Routers dial no edge and no storage node: such a link has a stolen certificate."""
    with connect(cluster, node, authority(cluster).node("router", "router-9")) as stolen:
        stolen.sendall(encode_hello(NodeIdentity(CLUSTER, "router-9", "router", LIFE, "127.0.0.1:1")))
        assert is_closed(stolen)
    assert re.search(r'"(links_refused_)?hello"\} [1-9]', cluster.metrics(node))


def test_router_outside_raft_group_cannot_register(cluster: LocalCluster) -> None:
    """It got its share of the shards, and each SUBSCRIBE to one of them hung."""
    before = cluster.admin("node", "list")
    with link(cluster, "router-0", "router", "router-9") as stolen:
        stolen.sendall(control(RegisterRequest(1, NodeEntry("router-9", "router", LIFE, "127.0.0.1:1"))))
        stolen.sendall(control(Heartbeat("router-9", LIFE, 1.0, 10**6), 2))
        cluster.wait_for(lambda: 'event="refused_role"' in cluster.metrics("router-0"), "refused")
    assert "router-9" not in str(cluster.admin("node", "list")) and "router-9" not in str(before)


def test_non_voter_cannot_depose_leader(cluster: LocalCluster) -> None:
    """Any message of a higher term ended the leader's term, and the maximum term would end all elections."""
    header = ("router-9", "router-0", (1 << 62) - 1, LIFE, 99, 0)
    lies: list[raft.RaftMessage] = [
        raft.AppendEntries(*header, 0, 0, 0, 1),
        raft.AppendEntriesReply(*header, True, 1, 1),
        raft.RequestVote(*header, 1 << 40, 1 << 40, True),
        raft.InstallSnapshot(*header, 1 << 40, 1, raft.Configuration({"router-9": 99}), 0, b"\xc1", True, 1),
    ]
    before = raft_figures(cluster)
    assert before["leader"] == 1.0
    with link(cluster, "router-0", "router", "router-9") as stolen:
        for number, lie in enumerate(lies, 1):
            stolen.sendall(frame(FrameKind.RAFT, raft.encode_message(lie), number))
        cluster.wait_for(lambda: raft_figures(cluster) != before, "told of it")
    after = raft_figures(cluster)
    assert (after["term"], after["leader"]) == (before["term"], 1.0)
    assert after["dropped"] > before["dropped"]


def raft_figures(cluster: LocalCluster) -> dict[str, float]:
    """Return the router's term, whether it leads, and its count of dropped foreign messages."""
    page = cluster.metrics("router-0")
    names = {"term": "raft_term", "leader": "raft_leader", "dropped": 'raft_dropped_total{reason="not_of_the_group"}'}
    found = {key: re.search(rf"^stratamq_{re.escape(name)} (\S+)$", page, re.MULTILINE) for key, name in names.items()}
    return {key: float(match.group(1)) if match else 0.0 for key, match in found.items()}


@pytest.mark.parametrize("tier", ["edge", "storage"])
def test_forged_acknowledgement_ignored(cluster: LocalCluster, tier: str) -> None:
    """PUBACK arrived after 4 ms while storage was stopped, and the message was lost."""
    life = incarnation(cluster, "edge-0")
    client = mqtt_client(cluster, f"forged-{tier}", f"forged/{tier}")
    with closing(client), link(cluster, "edge-0", tier, f"{tier}-11") as stolen:
        os.kill(cluster.pid("storage-0"), signal.SIGSTOP)
        try:
            client.send(packets.publish(f"forged/{tier}".encode(), b"m", 1, 9))
            records = b"".join(
                encode_publish_ack((life << 20) + tag, partition, 0) for tag in range(1, 60) for partition in range(256)
            )
            with contextlib.suppress(OSError):  # closed already: no storage node dials an edge
                stolen.sendall(frame(FrameKind.PUBLISH_ACK, records, 1))
            client.socket.settimeout(FORGED_S)
            with pytest.raises(TimeoutError):
                client.next_bytes()
            assert is_closed(stolen)
        finally:
            os.kill(cluster.pid("storage-0"), signal.SIGCONT)
        client.socket.settimeout(PATIENCE_S)
        assert PUBACK in [client.next_bytes() for _ in range(2)]  # the other one is the message


@pytest.mark.parametrize("tier", ["edge", "storage"])
def test_forged_push_reaches_no_client(cluster: LocalCluster, tier: str) -> None:
    """Any node could send a client messages that no client had published."""
    client_id = f"pushed-{tier}"
    partition = crc32(client_id.encode()) % 256
    client = mqtt_client(cluster, client_id, f"pushed/{tier}")
    with closing(client), link(cluster, "edge-0", tier, f"{tier}-12") as stolen:
        forged = [
            Push(partition << 48 | number, epoch << 32 | count, epoch, 99, 99, 1, b"forged", b"m")
            for number, epoch, count in itertools.product(range(4), (1, 2), range(4))
        ]
        with contextlib.suppress(OSError):  # likewise
            stolen.sendall(frame(FrameKind.PUSH, b"".join(map(encode_push, forged)), 1))
        assert is_closed(stolen)
        client.send(packets.publish(f"pushed/{tier}".encode(), b"m", 1, 9))
        # The replies for it follow the forged message.
        received = [client.next_bytes() for _ in range(2)]
        assert PUBACK in received and b"forged" not in b"".join(received)


# --- a client that stores its session


def mqtt_client(cluster: LocalCluster, client_id: str, topic: str) -> BlockingClient:
    """Return a client that is subscribed to its own topic."""
    client = BlockingClient(cluster.port(0, "plain"), 4, 20)
    client.open(client_id, clean_start=False)
    client.subscribe(topic)
    return client


def raft_flood(name: str) -> bytes:
    entries = tuple(raft.LogEntry(index, 1, raft.NORMAL, bytes(2_000)) for index in range(1, 20))
    return raft.encode_message(raft.AppendEntries(name, "router-0", 1, LIFE, 99, 0, 0, 0, 0, 1, entries))


FLOODS: dict[str, tuple[str, str, int, Callable[[str], bytes]]] = {  # target, tier, kind of frame, by name
    "an edge, messages to shards": (
        "router-0",
        "edge",
        FrameKind.CONTROL,
        lambda _: encode_control(RemoveRoutes(0, 10**6, -1, LIFE, 1, [])),
    ),
    "a router, heartbeats": (
        "router-0",
        "router",
        FrameKind.CONTROL,
        lambda name: encode_control(Heartbeat(name, LIFE, 1.0, 0)),
    ),
    "a router, Raft": ("router-0", "router", FrameKind.RAFT, raft_flood),
    "an edge, to a storage node": (
        "storage-0",
        "edge",
        FrameKind.CONTROL,
        lambda _: encode_control(Claims(1, 0, 10**6, [])),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("flood", FLOODS)
def test_link_flood_keeps_leases_and_bounds_memory(cluster: LocalCluster, flood: str) -> None:
    """Every heartbeat waited behind it: all nodes lost their leases, and restarted.

    Durable messages are stored meanwhile, and arrive.
    """
    target, tier, kind, payload_of = FLOODS[flood]
    name = f"{tier}-{21 + list(FLOODS).index(flood)}"
    payload, lives = payload_of(name), {node: incarnation(cluster, node) for node in ("edge-0", "storage-0")}
    pid = cluster.pid(target)
    before, most = resident_mib(pid), 0
    client = mqtt_client(cluster, f"honest-{name}", f"honest/{name}")
    with closing(client), link(cluster, target, tier, name) as stolen, ThreadPoolExecutor(1) as attacker:
        client.socket.settimeout(PATIENCE_S)
        over = time.monotonic() + FLOOD_S
        sent = attacker.submit(send_until, over, stolen, kind, payload)
        while not sent.done():
            most = max(most, resident_mib(pid))
            client.send(packets.publish(f"honest/{name}".encode(), b"m", 1, 9))
            received = [client.next_bytes() for _ in range(2)]
            assert PUBACK in received
            (message,) = (each for each in received if each != PUBACK)
            client.send(packets.ack(0x40, int.from_bytes(message[-3:-1], "big")))
        assert sent.result() > 10 * FRAMES_AT_ONCE
    now = {node: incarnation(cluster, node) for node in lives}
    assert now == lives, "a node had no lease, and began anew"
    assert max(most, resident_mib(pid)) < before + FLOOD_MIB


def send_until(over: float, stolen: ssl.SSLSocket, kind: int, payload: bytes) -> int:
    """Send frames as fast as they are read; return how many."""
    at_once = max(1, min(FRAMES_AT_ONCE, 1_000_000 // len(payload)))
    for first in itertools.count(1, at_once):
        stolen.sendall(b"".join(frame(kind, payload, number) for number in range(first, first + at_once)))
        if time.monotonic() > over:
            return first + at_once
    raise AssertionError


def test_unread_links_are_counted(cluster: LocalCluster) -> None:
    for node in ("router-0", "storage-0"):
        assert re.search(r"^stratamq_links_paused_total [0-9]", cluster.metrics(node), re.MULTILINE)


def resident_mib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024
