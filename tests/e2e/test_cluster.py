"""The whole thing as a newcomer meets it: `stratamq up`, real client programs over TLS on different edges, kills."""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.clients.paho_client import PahoClient
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.patience import PATIENCE_S

mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto_pub") is None, reason="mosquitto_pub is missing: apt install mosquitto-clients"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster() as running:
        yield running


def connected(cluster: LocalCluster, edge: int, client_id: str = "", *, clean: bool = True) -> PahoClient:
    """Return a client of 3.1.1 at an edge, over TLS."""
    expiry_s = 0 if clean else 1
    return PahoClient(cluster.port(edge), client_id, listener="tls", authority=cluster.authority, expiry_s=expiry_s)


def publish(cluster: LocalCluster, edge: int, topic: str, payload: str, qos: int, *, retain: bool = False) -> None:
    """Publish one message with its own client, and wait for the acknowledgement."""
    publisher = connected(cluster, edge)
    publisher.publish(topic, payload, qos, retain)
    publisher.close()


@mosquitto
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_mosquitto_clients_on_different_edges(cluster: LocalCluster, qos: int, version: str) -> None:
    """The two printed lines work, for every QoS and both versions, over TLS."""
    common = ["-h", "localhost", "--cafile", cluster.authority, "-V", version, "-q", str(qos)]
    topic = f"hello/{version}/{qos}"
    subscriber = subprocess.Popen(
        [
            "stdbuf",
            "-oL",
            "mosquitto_sub",
            *common,
            "-p",
            str(cluster.port(0)),
            "-t",
            f"hello/{version}/#",
            "-C",
            "1",
            "-v",
            "-d",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert subscriber.stdout is not None
    for line in subscriber.stdout:
        if "SUBACK" in line:
            break
    subprocess.run(
        ["mosquitto_pub", *common, "-p", str(cluster.port(1)), "-t", topic, "-m", "Hello"],
        check=True,
        timeout=PATIENCE_S,
    )
    output, _ = subscriber.communicate(timeout=PATIENCE_S)
    assert f"{topic} Hello" in output.splitlines()


def test_suback_means_subscribed_at_the_other_edge(cluster: LocalCluster) -> None:
    """Point 4: another edge's cached route without the new subscription is invalidated before SUBACK."""
    for number in range(20):
        topic = f"barrier/{number}"
        publish_first = connected(cluster, 1)
        publish_first.publish(topic, "before", 1)  # edge 1 caches: no subscriber
        subscriber = connected(cluster, 0)
        subscriber.subscribe(topic, 0)
        publish_first.paho.publish(topic, "after", 0)
        assert subscriber.wait_for(1) == [f"{topic} after"]
        subscriber.close()
        publish_first.close()


def test_durable_session_moves_and_survives_kill_9_of_storage(cluster: LocalCluster) -> None:
    """Point 2: messages queued while the client was away arrive at the other edge, after kill -9 of storage."""
    subscriber = connected(cluster, 0, "durable-1", clean=False)
    subscriber.subscribe("durable/#", 2)
    subscriber.close()
    expected = []
    for number in range(10):
        publish(cluster, 1, f"durable/{number}", f"m{number}", 1 + number % 2)
        expected.append(f"durable/{number} m{number}")
    before = cluster.pid("storage-0")
    cluster.kill("storage-0")
    again = connected(cluster, 1, "durable-1", clean=False)
    assert again.session_present
    got = again.wait_for(10)  # a QoS 2 message reaches the application at PUBREL, so the two QoS interleave
    assert sorted(got) == expected
    assert [line for line in got if int(line[-1]) % 2] == expected[1::2]
    assert [line for line in got if int(line[-1]) % 2 == 0] == expected[::2]
    cluster.wait_for(lambda: cluster.is_started_again("storage-0", before), "storage started again")
    publish(cluster, 0, "durable/live", "live", 2)
    assert again.wait_for(11)[-1] == "durable/live live"
    again.close()


def test_retained_and_wildcards(cluster: LocalCluster) -> None:
    """Retained messages by exact topic and wildcard, cleared by an empty payload."""
    publish(cluster, 0, "retained/a", "1", 1, retain=True)
    publish(cluster, 1, "retained/b", "2", 0, retain=True)
    one = connected(cluster, 1)
    one.subscribe("retained/a", 1)
    assert one.wait_for(1) == ["retained/a 1"]
    assert one.messages[0].retain
    every = connected(cluster, 0)
    every.subscribe("retained/+", 1)
    assert sorted(every.wait_for(2)) == ["retained/a 1", "retained/b 2"]
    publish(cluster, 0, "retained/a", "", 1, retain=True)
    late = connected(cluster, 1)
    late.subscribe("retained/#", 1)
    assert late.wait_for(1) == ["retained/b 2"]
    for client in (one, every, late):
        client.close()


def test_bridge_states_reach_subscribers_of_another_edge(cluster: LocalCluster) -> None:
    """Live subscribers, a later one, and an absent stored session; $SYS/# includes them beside the metrics."""
    live, stored = connected(cluster, 1), connected(cluster, 1, "sys-stored", clean=False)
    live.subscribe("$SYS/broker/connection/#", 1)
    stored.subscribe("$SYS/broker/connection/+/state", 1)
    stored.close()
    publish(cluster, 0, "$SYS/broker/connection/plant/state", "1", 1, retain=True)
    assert live.wait_for(1) == ["$SYS/broker/connection/plant/state 1"]
    late = connected(cluster, 1)
    late.subscribe("$SYS/#", 1)
    both = {"$SYS/broker/connection/plant/state", "$SYS/broker/version"}
    late.wait(lambda: both <= {one.topic for one in late.messages}, "both kinds")
    again = connected(cluster, 1, "sys-stored", clean=False)
    assert again.wait_for(1) == ["$SYS/broker/connection/plant/state 1"]
    for client in (live, late, again):
        client.close()


def test_will_published_when_client_dies(cluster: LocalCluster) -> None:
    """A connection that breaks without DISCONNECT publishes its will to subscribers of another edge."""
    watcher = connected(cluster, 1)
    watcher.subscribe("will/#", 1)
    mortal = paho.Client(CallbackAPIVersion.VERSION2, client_id="mortal")
    mortal.tls_set(cluster.authority)
    mortal.will_set("will/mortal", "gone", 1)
    opened = threading.Event()
    mortal.on_connect = lambda *_: opened.set()
    mortal.connect("localhost", cluster.port(0))
    mortal.loop_start()
    assert opened.wait(PATIENCE_S)
    mortal.loop_stop()
    sock = mortal.socket()
    assert sock is not None
    sock.close()
    assert watcher.wait_for(1) == ["will/mortal gone"]
    watcher.close()


def test_ring_show_and_explain(cluster: LocalCluster) -> None:
    """Point 3: the router reports the placement of a client ID and a topic, and the reason."""
    shown = cluster.admin("ring", "show")
    assert len(shown["partitions"]) == 256
    assert {placement["primary"] for placement in shown["partitions"]} == {"storage-0"}
    assert {shard["owner"] for shard in shown["shards"]} == {"router-0"}
    explained = cluster.admin("ring", "explain", "durable-1")
    assert explained["primary"] == "storage-0"
    assert explained["owner"] == "router-0"


def test_node_list_shows_clients_and_load_of_edges(cluster: LocalCluster) -> None:
    """`node list` shows the clients and the load from gossip, and an address for each listener."""

    def node_row(name: str) -> dict[str, Any]:
        nodes = cluster.admin("node", "list")["nodes"]
        return next(node for node in nodes if node["node"] == name)

    def there() -> int:  # clients of other tests may be leaving still
        (line,) = (line for line in cluster.metrics("edge-0").splitlines() if line.startswith("stratamq_clients "))
        return int(float(line.split()[1]))

    cluster.wait_for(lambda: node_row("edge-0")["connected"] is not None, "told by gossip")
    clients = [connected(cluster, 0) for _ in range(3)]
    cluster.wait_for(lambda: node_row("edge-0")["connected"] == there() >= 3, "as many as there are")
    assert 0.0 <= node_row("edge-0")["load"] <= 1.0
    assert node_row("edge-0")["clients"]["tls"].endswith(f":{cluster.port(0)}")
    assert node_row("router-0")["connected"] is None
    for client in clients:
        client.close()


def test_gossip_key_rotation_in_running_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    """Install, use and remove reach every member's file; no member is declared dead; a premature step is refused."""
    cluster.wait_for(lambda: all(node["gossip"] for node in cluster.admin("cluster", "status")["nodes"]), "gossiping")
    members = cluster.admin("membership", "list")["members"]
    assert [member["member"] for member in members] == sorted(member["member"] for member in members)
    assert {(member["member"], member["tier"], member["state"]) for member in members} >= {
        ("edge-0", "edge", "alive"),
        ("router-0", "router", "alive"),
    }
    assert sum(member["asked"] for member in members) == 1 and all(0 <= member["since_s"] < 900 for member in members)
    old = cluster.admin("membership", "keys", "list")["members"][0]["keys"]
    file = tmp_path / "next.key"
    cluster.command("membership", "keys", "generate", str(file))
    installed = cluster.admin("membership", "keys", "install", str(file))
    assert installed["complete"], installed
    new = installed["key_id"]
    refused = cluster.command("membership", "keys", "remove", old[0], "--data", str(cluster.data))
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"stratamq: key {old[0]} still seals on: edge-0, edge-1, ")
    assert cluster.admin("membership", "keys", "use", new)["complete"]
    assert cluster.admin("membership", "keys", "remove", old[0])["complete"]
    members = cluster.admin("membership", "keys", "list")["members"]
    assert {member["member"]: (member["keys"], member["persisted"]) for member in members} == dict.fromkeys(
        ("edge-0", "edge-1", "router-0", "storage-0"), ([new], True)
    )
    nodes = cluster.admin("cluster", "status")["nodes"]
    assert {node["state"] for node in nodes} == {"active"}


def test_metrics_and_sys(cluster: LocalCluster) -> None:
    """Point 8: counters on /metrics of every tier and in $SYS."""
    assert "stratamq_messages_received_total" in cluster.metrics("edge-0")
    assert "stratamq_partitions_primary 256.0" in cluster.metrics("storage-0")
    assert "stratamq_raft_leader 1.0" in cluster.metrics("router-0")
    assert all("stratamq_turn_longest_seconds" in cluster.metrics(node) for node in ("edge-0", "storage-0", "router-0"))
    reader = connected(cluster, 0)
    reader.subscribe("$SYS/broker/version", 0)
    assert reader.wait_for(1)[0].startswith("$SYS/broker/version StrataMQ")
    reader.close()


def state_of(cluster: LocalCluster, name: str) -> str:
    """Return a node's state as operators see it."""
    nodes = cluster.admin("cluster", "status")["nodes"]
    return str(next(node["state"] for node in nodes if node["node"] == name))


def test_killed_edge_is_dead_after_its_lease_and_returns() -> None:
    """Point 6: the status page shows a killed edge as dead after its lease expired."""
    with local_cluster("--no-restart") as running:
        running.kill("edge-1")
        running.wait_for(lambda: state_of(running, "edge-1") == "dead", "edge-1 dead")
        publish(running, 0, "alone", "still here", 1)


def test_guarantees_hold_without_gossip() -> None:
    """Members that never find each other: leases and the map alone connect the tiers, deliver, and declare a death."""
    with local_cluster("--no-restart", "--set", 'membership.seeds=["127.0.0.1:1"]') as running:
        believed = {node["node"]: node["gossip"] for node in running.admin("cluster", "status")["nodes"]}
        assert {believed[name] for name in ("edge-0", "edge-1", "storage-0")} == {None}
        reader = connected(running, 0, "without-gossip", clean=False)
        reader.subscribe("quiet/#", 1)
        publish(running, 1, "quiet/a", "one", 1)
        assert reader.wait_for(1) == ["quiet/a one"]
        running.kill("edge-1")
        running.wait_for(lambda: state_of(running, "edge-1") == "dead", "edge-1 dead")
        publish(running, 0, "quiet/b", "two", 1)
        assert reader.wait_for(2) == ["quiet/a one", "quiet/b two"]
        reader.close()


def test_export_and_compaction(cluster: LocalCluster, tmp_path: Path) -> None:
    """Point 7: Parquet SSTables with a manifest, and the Spark job over them."""
    pytest.importorskip("pyspark", reason="pyspark is missing: make setup-jobs")
    if shutil.which("java") is None:
        pytest.skip("java is missing: apt install openjdk-17-jre-headless")
    subscriber = connected(cluster, 0, "exported", clean=False)
    subscriber.subscribe("export/#", 1)
    subscriber.close()
    for number in range(5):
        publish(cluster, 1, f"export/{number}", "x", 1)
    elsewhere = cluster.command("store", "export", "--output", str(tmp_path / "run"), "--data", str(cluster.data))
    assert elsewhere.returncode == 2 and "storage.export_dir" in elsewhere.stderr
    runs = cluster.data / "exports" / "run"
    exported = cluster.command("store", "export", "--output", str(runs), "--data", str(cluster.data))
    assert exported.returncode == 0, exported.stderr
    assert list(runs.glob("manifest-*.json"))
    compacted = cluster.command("jobs", "compact", "--input", str(runs), "--output", str(tmp_path / "out"))
    assert compacted.returncode == 0, compacted.stderr
    assert not {"WARN", "log4j", "Spark"} & set(compacted.stderr.replace("'", " ").split()), compacted.stderr
    total = sum(json.loads(path.read_text())["totals"]["rows"] for path in (tmp_path / "out").glob("manifest-*.json"))
    assert total > 5


def test_edge_with_listener_without_rules_does_not_start(tmp_path: Path) -> None:
    """With the file of `init` without its roles: one line names the setting, before any router is contacted."""
    assert LocalCluster.command("init", str(tmp_path / "cluster")).returncode == 0
    config = tmp_path / "cluster" / "edge-0.toml"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if "roles" not in line))
    result = LocalCluster.command("edge", "--config", str(config), "--set", "logs.level=error")
    assert result.returncode != 0 and result.stderr.count("\n") == 1, result.stderr
    assert "edge.listeners.tls.roles_file" in result.stderr


def test_each_configuration_mistake_is_one_line(tmp_path: Path) -> None:
    """A broken configuration: each mistake in its own line, exit code 2, no traceback."""
    broken = tmp_path / "edge.toml"
    broken.write_text("[edge]\nkep_alive_max_s = 3\nreceive_maximum = 0\n")
    result = LocalCluster.command("edge", "--config", str(broken))
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "keep_alive_max_s" in result.stderr
    assert "receive_maximum" in result.stderr
