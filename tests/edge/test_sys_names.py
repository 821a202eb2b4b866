"""$SYS names compared with a real Mosquitto; load averages; the nodes of the map."""

import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from edge.node.limits import EdgeLimits
from edge.subscriptions.load_averages import LoadAverages
from edge.subscriptions.sys_topics import SysTopics
from tests.clients.paho_client import PahoClient
from tests.edge.edge_harness import Edge, cluster_map
from tests.edge.session_answers import publishes
from tests.free_ports import free_port

EXECUTABLE = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
STORED = {  # not provided: an edge stores no data, and 0 would be wrong
    f"$SYS/broker/{name}"
    for name in (
        *("clients/disconnected", "clients/inactive", "clients/expired", "retained messages/count"),
        *("messages/stored", "store/messages/count", "store/messages/bytes"),
    )
}
THEIRS_MIN = 50  # of 53 names of 2.0.11; a young broker has fewer


def named(sys: SysTopics) -> set[str]:
    return {topic for topic, _ in sys.matching("$SYS/#")}


def test_sys_has_all_names_of_mosquitto(tmp_path: Path) -> None:
    """A running one is read; only names of stored data are missing here."""
    if not Path(EXECUTABLE).exists():
        pytest.skip("mosquitto is not installed (Debian: mosquitto)")
    port = free_port()
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nsys_interval 1\n")
    with subprocess.Popen([EXECUTABLE, "-c", str(config)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        try:
            while b" running" not in process.stdout.readline():
                assert process.poll() is None, "Mosquitto ended"
            reader = PahoClient(port)
            reader.subscribe("$SYS/#", 0)
            reader.wait(lambda: len({one.topic for one in reader.messages}) >= THEIRS_MIN, "their names")
            theirs = {one.topic for one in reader.messages}
            reader.close()
        finally:
            process.terminate()
    sys = SysTopics("1", "e0")
    sys.update(10.0, 10.0, {}, cluster_map())
    assert theirs - named(sys) == STORED


def test_load_averages_decay_like_mosquitto() -> None:
    """Ten a second are 600 a minute: 63 % of it after the minutes of each, and the same on the way down."""
    loads, total = LoadAverages(), 0
    for _ in range(6 * 60):  # an hour of steps of 10 s
        total += 100
        shown = loads.update(10.0, {"bytes/sent": total})
    assert shown.keys() == {"bytes/sent/1min", "bytes/sent/5min", "bytes/sent/15min"}
    assert shown["bytes/sent/1min"] == "600.00" and 585 < float(shown["bytes/sent/15min"]) < 600
    for _ in range(6):
        shown = loads.update(10.0, {"bytes/sent": total})
    assert float(shown["bytes/sent/1min"]) == pytest.approx(600 / 2.71828, rel=0.01)
    first = LoadAverages().update(60.0, {"x": 60})
    assert float(first["x/1min"]) == pytest.approx(60 * (1 - 1 / 2.71828), rel=0.01)


def test_sys_topics_of_map_nodes() -> None:
    sys, first = SysTopics("1", "e0"), cluster_map()
    sys.update(0.0, 0.0, {}, first)
    values = dict(sys.matching("$SYS/cluster/nodes/s0/#"))
    assert values == {
        "$SYS/cluster/nodes/s0/tier": b"storage",
        "$SYS/cluster/nodes/s0/state": b"active",
        "$SYS/cluster/nodes/s0/incarnation": b"1",
        "$SYS/cluster/nodes/s0/zone": b"",
    }
    nodes = {name: entry for name, entry in first.nodes.items() if name != "s0"}
    changed = dict(sys.update(0.0, 1.0, {}, msgspec.structs.replace(first, epoch=2, nodes=nodes)))
    assert not sys.matching("$SYS/cluster/nodes/s0/#") and sys.matching("$SYS/cluster/nodes/e1/#")
    assert changed["$SYS/cluster/ring/version"] == b"2"


def test_sys_metrics_follow_events() -> None:
    edge = Edge(EdgeLimits(sys_interval_s=10))
    watcher = edge.client("watcher")
    watcher.subscribe("$SYS/broker/#", "$share/g/a", qos=0)
    for number in range(3):
        edge.client(str(number)).drop()
    edge.client("stays").publish("$SYS/not/allowed")
    watcher.read()
    edge.turn(10.1)
    values = {copy.topic_name.removeprefix("$SYS/broker/"): copy.payload.decode() for copy in publishes(watcher)}
    assert (values["clients/connected"], values["clients/total"], values["clients/maximum"]) == ("2", "2", "2")
    assert (values["shared_subscriptions/count"], values["publish/messages/dropped"]) == ("1", "1")
    assert 0 < float(values["load/connections/1min"]) <= 30
    assert values["load/connections/1min"] == values["load/sockets/1min"]
