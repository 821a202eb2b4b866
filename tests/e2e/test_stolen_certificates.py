"""A node certificate that never registered: real nodes send it no data reserved for live nodes."""

import ssl
from collections.abc import Iterator

import pytest

from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_forged_messages import LIFE
from tests.e2e.test_hostile_links import CLUSTER, authority, connect, is_closed
from tests.patience import PATIENCE_S
from wire.links.link import LinkCore
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import Control, decode_control, decode_controls, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import HelloReader, NodeIdentity, encode_hello
from wire.messages.nodes import FollowMap, MapPage, Registered, RegisterRequest
from wire.messages.policy import AskCredentials, FetchUsers, FollowPolicy, PolicyPaged, PolicyStepped, UserRecords

QUESTIONS: list[Control] = [AskCredentials(1, "ann"), FetchUsers(2, ["ann"]), FollowPolicy(0)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    secret = tmp_path_factory.mktemp("secret") / "password"
    secret.write_text("hunter2")
    secret.chmod(0o600)
    with local_cluster("--edges", "1", "--storages", "1", "--routers", "1") as running:
        added = running.command("user", "add", "ann", "--password-file", str(secret), "--data", str(running.data))
        assert added.returncode == 0, added.stderr
        yield running


class Stolen:
    """A link with a stolen edge certificate."""

    def __init__(self, connection: ssl.SSLSocket, name: str) -> None:
        self._connection = connection
        self._core = LinkCore()
        self._core.connected(0)
        connection.settimeout(PATIENCE_S)
        connection.sendall(encode_hello(NodeIdentity(CLUSTER, name, "edge", LIFE, "127.0.0.1:1")))
        hello = HelloReader()
        while hello.receive(connection.recv(1 << 18)) is None:
            pass

    def say(self, *messages: Control) -> None:
        for message in messages:
            self._core.send(FrameKind.CONTROL, encode_control(message))
        self._connection.sendall(self._core.take_output())

    def hear(self, *until: type) -> list[Control]:
        """Return received messages, up to a message of a type."""
        received: list[Control] = []
        while not any(isinstance(message, until) for message in received):
            data = self._connection.recv(1 << 18)
            assert data, received
            for frame in self._core.receive(data):
                if frame.kind == FrameKind.CONTROL:
                    received.append(decode_control(frame.payload))
                elif frame.kind == FrameKind.CONTROLS:
                    received += decode_controls(frame.payload)
        return received


def test_unregistered_edge_reads_map_only(cluster: LocalCluster) -> None:
    """It read argon2id records, SCRAM verifiers and the policy; after registration it may, and is counted."""
    with connect(cluster, "router-0", authority(cluster).node("edge", "edge-77")) as connection:
        stolen = Stolen(connection, "edge-77")
        stolen.say(*QUESTIONS, FollowMap(0))
        assert [type(message) for message in stolen.hear(MapPage)] == [MapPage]
        assert 'credentials_sent_total{edge="edge-77"}' not in cluster.metrics("router-0")
        stolen.say(RegisterRequest(9, NodeEntry("edge-77", "edge", LIFE, "127.0.0.1:1")))
        received = stolen.hear(PolicyPaged, PolicyStepped)
        assert any(isinstance(message, Registered) for message in received)
        users = [message for message in received if isinstance(message, UserRecords)]
        assert [message.request for message in users] == [1, 2]
        records = [len(message.records[0] or b"") for message in users]
        assert records[0] > records[1] + 64, "only the answer for a login has the record"
        assert 'router_credentials_sent_total{edge="edge-77"} 1' in cluster.metrics("router-0")


def test_other_nodes_refuse_its_link(cluster: LocalCluster) -> None:
    """It read retained messages at a storage node, and published at edges."""
    for node in ("storage-0", "edge-0"):
        with connect(cluster, node, authority(cluster).node("edge", "edge-78")) as connection:
            connection.sendall(encode_hello(NodeIdentity(CLUSTER, "edge-78", "edge", LIFE, "127.0.0.1:1")))
            assert is_closed(connection), node
