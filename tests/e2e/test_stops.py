"""SIGTERM, SIGHUP and SIGUSR1 on real processes: clients get a reason, primaries and leadership move.

The cluster restarts ended processes, so each test starts with a complete cluster.
"""

import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from bench.failover import Load, by_role
from conf.errors import UserError
from mqtt.packets import Disconnect
from stratamq.cli.node_requests import ask_links
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_endings import connected
from tests.patience import PATIENCE_S
from tests.turn_time import TRIES

SHAPE = ("--storages", "3", "--edges", "2")
LEASE_S = 10.0  # so long that a slow machine, too, hands over sooner
SETTINGS = (
    "--set=router.partitions=32",
    "--set=router.replicas=3",
    "--set=router.min_in_sync=2",
    f"--set=router.lease_s={LEASE_S}",
)
SETTLED_S = 60.0
MESSAGES = 150
V5 = MQTTProtocolVersion.MQTTv5
WINDOW = 8
COPIES = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(*SHAPE, *SETTINGS) as running:
        yield running


def until(condition: Callable[[], object], what: str, within_s: float = SETTLED_S) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: It does not hold in time.
    """
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"not {what} after {within_s} s"
        time.sleep(0.02)


def term(cluster: LocalCluster, node: str) -> None:
    """SIGTERM a node, and wait until its process has ended."""
    pid = cluster.pid(node)
    os.kill(pid, signal.SIGTERM)
    until(lambda: cluster.state["nodes"].get(node, {}).get("pid", 0) != pid, f"{node} ended")


def log(cluster: LocalCluster, node: str) -> str:
    return (cluster.data / "logs" / f"{node}.log").read_text()


def status(cluster: LocalCluster) -> dict[str, object]:
    try:
        answer: dict[str, object] = ask_links("cluster status", {}, "", cluster.data).result
    except UserError:
        return {}
    return answer


def settle(cluster: LocalCluster, load: Load) -> None:
    """Let clients go on until every partition has all its copies and every storage node runs."""
    end = time.monotonic() + SETTLED_S
    while (found := status(cluster)) == {} or found["partitions_under_replicated"]:
        assert time.monotonic() < end, f"not whole after {SETTLED_S} s: {found}"
        load.run(0.1)


def readiness(cluster: LocalCluster, node: str) -> int:
    """Return the status of /readyz."""
    address = cluster.state["nodes"][node]["addresses"]["metrics"]
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=PATIENCE_S) as page:
            return int(page.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:  # it has ended
        return 0


class Paho:
    """A client of the real library that reconnects by itself."""

    def __init__(
        self, cluster: LocalCluster, name: str, version: MQTTProtocolVersion, edge: int, filters: str = ""
    ) -> None:
        self.reasons: list[str] = []
        self.received: list[str] = []
        self.connects = self.sent = self.acknowledged = 0
        self.name = name
        self._filters = filters
        self.client = Client(CallbackAPIVersion.VERSION2, name, protocol=version)
        if version != V5:
            self.client = Client(CallbackAPIVersion.VERSION2, name, clean_session=False, protocol=version)
        self.client.on_connect = self._connected
        self.client.on_disconnect = self._disconnected
        self.client.on_message = lambda _client, _data, message: self.received.append(message.payload.decode())
        self.client.on_publish = self._acknowledged
        self.client.max_inflight_messages_set(10)
        self.client.reconnect_delay_set(1, 1)
        options: dict[str, object] = {}
        if version == V5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 600
            options = {"clean_start": False, "properties": properties}
        self.client.connect("127.0.0.1", cluster.port(edge, "plain"), **options)  # type: ignore[arg-type]
        self.client.loop_start()
        until(lambda: self.connects, f"{name} connected")

    def _connected(self, client: Client, *_: object) -> None:
        if self._filters:
            client.subscribe(self._filters, 1)
        self.connects += 1

    def _disconnected(self, _client: Client, _data: object, _flags: object, reason: object, _more: object) -> None:
        self.reasons.append(str(reason))

    def _acknowledged(self, *_: object) -> None:
        self.acknowledged += 1

    def publish(self, count: int) -> bool:
        """Keep a window of messages of QoS 1 open, up to so many in all; True when all are acknowledged."""
        while self.sent < min(count, self.acknowledged + WINDOW):
            self.client.publish(f"stops/{self.name}", f"{self.name}-{self.sent}", 1)
            self.sent += 1
        return self.acknowledged == count

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def test_sighup_and_sigusr1_end_no_node(cluster: LocalCluster) -> None:
    """Both end a process without a handler."""
    nodes = ("edge-0", "storage-0", "router-0")
    pids = {node: cluster.pid(node) for node in nodes}
    for pid in pids.values():
        os.kill(pid, signal.SIGHUP)
        os.kill(pid, signal.SIGUSR1)
    for node in nodes:
        until(lambda node=node: "state: signals_total" in log(cluster, node), f"{node} wrote its state")  # type: ignore[misc]
        until(lambda node=node: "reloaded: 0 differences" in log(cluster, node), f"{node} reloaded")  # type: ignore[misc]
        assert f"state: node {node}" in log(cluster, node)
        assert "leader router-" in log(cluster, node) and "links: " in log(cluster, node)
        assert 'stratamq_signals_total{signal="SIGHUP"} 1.0' in cluster.metrics(node)
    assert {node: cluster.pid(node) for node in nodes} == pids


def test_clients_of_stopping_edge_get_reason_and_lose_no_message(cluster: LocalCluster) -> None:
    """MQTT 5 reads 0x8B, 3.1.1 the close; each message is acknowledged, now or when it is sent again, and arrives."""
    reader = Paho(cluster, "reader", V5, 1, "stops/#")
    writers = [Paho(cluster, "five", V5, 0), Paho(cluster, "four", MQTTProtocolVersion.MQTTv311, 0)]

    def go_on(count: int) -> bool:
        return all([writer.publish(count) for writer in writers])  # noqa: C419  calls every writer

    until(lambda: not go_on(MESSAGES) and min(writer.sent for writer in writers) > WINDOW, "under way")
    term(cluster, "edge-0")
    until(lambda: go_on(MESSAGES), "acknowledged")
    wanted = {f"{name}-{number}" for name in ("five", "four") for number in range(MESSAGES)}
    until(lambda: wanted <= set(reader.received), "all received")
    assert writers[0].reasons and writers[0].reasons[0] == "Server shutting down"
    assert writers[1].reasons and writers[1].connects >= 2
    for client in (reader, *writers):
        client.stop()
    assert "stopped in order" in log(cluster, "edge-0")


def test_stopping_node_is_not_ready_and_accepts_no_client(cluster: LocalCluster) -> None:
    """A client that reads 0x8B and does not close delays its edge long enough for the check."""
    for _ in range(TRIES):
        pid = cluster.pid("edge-0")
        until(lambda: readiness(cluster, "edge-0") == 200, "ready")
        client = connected(cluster, 0)
        client.open("slow")
        os.kill(pid, signal.SIGTERM)
        packet = client.read()
        assert isinstance(packet, Disconnect) and packet.reason_code == 0x8B
        assert client.read() is None
        found, takes = readiness(cluster, "edge-0"), can_connect(cluster)
        client.close()
        if Path(f"/proc/{pid}").exists():  # the check was in time
            break
        until(lambda pid=pid: cluster.is_started_again("edge-0", pid), "started again")  # type: ignore[misc]
    assert (found, takes) == (503, False)


def can_connect(cluster: LocalCluster) -> bool:
    """Return whether edge-0 accepts connections."""
    try:
        connected(cluster, 0).close()
    except ConnectionRefusedError:
        return False
    return True


def test_storage_node_replaced_before_it_ends(cluster: LocalCluster) -> None:
    """No client waits for a lease, and no message is lost, repeated or reordered."""
    load = Load(cluster.port(1, "plain"), 24)
    settle(cluster, load)
    placements = ask_links("ring show", {}, "", cluster.data).result["partitions"]
    load.run(0.5)
    load.gaps()
    os.kill(cluster.pid("storage-1"), signal.SIGTERM)

    def is_handed_over() -> bool:
        load.run(0.5)
        return "stopped in order; nothing waits for this node" in log(cluster, "storage-1")

    until(is_handed_over, "handed over")
    load.run(0.5)
    gaps = dict(by_role(placements, load.gaps(), "storage-1"))
    print("longest time between two PUBACKs:", {role: round(max(times), 3) for role, times in gaps.items() if times})
    assert gaps["primary"], "no client on a partition of this node"
    assert max(gaps["primary"]) < LEASE_S, "it was not handed over: that takes a lease, and more"
    settle(cluster, load)
    load.run(30.0, sending=False)
    assert not [fault for client in load.clients for fault in client.faults]
    assert all(client.done for client in load.clients)


def test_all_nodes_stopped_together(cluster: LocalCluster) -> None:
    """Tier by tier, in time, no process killed, no primary moved to a stopping node. The cluster ends here."""
    assert cluster.stop() == 0
    log_text = cluster.log.read_text()
    assert log_text.rstrip().endswith("stopped") and "killed" not in log_text
    for number in range(COPIES):
        assert log(cluster, f"storage-{number}").count("no other storage stays: nothing is handed over") == 1


@pytest.mark.slow
def test_stopping_leader_transfers_leadership() -> None:
    """Another one leads when it ends; SUBSCRIBE and PUBLISH continue."""
    with local_cluster("--routers", "3", "--edges", "1") as cluster:
        until(lambda: status(cluster).get("leader"), "led")
        leader = str(status(cluster)["leader"])
        term(cluster, leader)
        assert "transferring the leadership to" in log(cluster, leader)
        assert "took too long" not in log(cluster, leader)
        client = Paho(cluster, "after", V5, 0, "stops/#")
        until(lambda: client.publish(1) and client.received, "served")
        client.stop()
        until(lambda: status(cluster).get("leader") not in ("", None, leader), "led by another one")
