"""A real Mosquitto bridge, ``topic # both``: no message returns, and RETAIN is kept."""

import contextlib
import json
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.paho_client import PahoClient
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.free_ports import free_port
from tests.patience import PATIENCE_S

EXECUTABLE = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
TIMEOUT_S = PATIENCE_S
EACH = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    if not Path(EXECUTABLE).exists():
        pytest.skip("mosquitto is not installed (Debian: mosquitto)")
    with local_cluster("--edges", "1", "--set", "edge.events=true") as running:
        yield running


@contextlib.contextmanager
def bridge(folder: Path, ours: int, version: str, clean: bool, more: str = "notifications false") -> Iterator[int]:
    """Run Mosquitto with a bridge to our port; yield its own port."""
    port = free_port()
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nconnection up-{version}-{clean}\naddress 127.0.0.1:{ours}\n"
        f"topic # both 2\nbridge_protocol_version {version}\ncleansession {str(clean).lower()}\n"
        f"{more}\nrestart_timeout 1\nbridge_attempt_unsubscribe false\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([EXECUTABLE, "-c", str(config), "-v"], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while " running" not in (folder / "log").read_text():
            assert time.monotonic() < deadline, "Mosquitto does not start"
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


class Client(PahoClient):
    """Subscribes to all topics below a prefix, and counts."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__(port)
        self.topic = topic
        self.subscribe(f"{topic}/#", 2)

    def say(self, name: str, payload: str, qos: int = 1, retain: bool = False) -> None:
        self.publish(f"{self.topic}/{name}", payload, qos, retain)

    def got(self) -> Counter[tuple[str, str, bool]]:
        """Return how often each message has come."""
        topic = len(self.topic) + 1
        return Counter((one.topic[topic:], one.payload.decode(), one.retain) for one in self.messages)

    def expect(self, *expected: tuple[str, str, bool]) -> None:
        self.wait(lambda: set(expected) <= set(self.got()), f"received: {expected}")


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "stored"])
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311"])
def test_no_message_returns_over_bridge(cluster: LocalCluster, tmp_path: Path, version: str, clean: bool) -> None:
    """Levels 0x83 and 0x84: each message reaches the other side once, and is retained there if it was here."""
    ours = cluster.port(0, "plain")
    topic = f"bridge/{version}/{clean}"
    with bridge(tmp_path, ours, version, clean) as theirs:
        near, far = Client(ours, topic), Client(theirs, topic)
        try:
            deadline = time.monotonic() + TIMEOUT_S
            first = ("near", "first", False), ("far", "first", False)
            while first[1] not in near.got() or first[0] not in far.got():  # QoS 0, or it would be kept for later
                near.say("near", "first", 0)
                far.say("far", "first", 0)
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-2000:]
                time.sleep(0.05)
            for number in range(EACH):
                near.say(f"near/{number}", "n", number % 3)
                far.say(f"far/{number}", "f", number % 3)
            near.say("kept/near", "n", retain=True)
            far.say("kept/far", "f", retain=True)
            sent = [(f"near/{number}", "n", False) for number in range(EACH)]
            sent += [(f"far/{number}", "f", False) for number in range(EACH)]
            sent += [("kept/near", "n", False), ("kept/far", "f", False)]
            for side in (near, far):
                side.expect(*sent)
            near.say("last", "near")
            far.say("last", "far")
            for side in (near, far):  # any returned message has arrived by now
                side.expect(("last", "near", False), ("last", "far", False))
                twice = {key: count for key, count in side.got().items() if count > 1 and key[1] != "first"}
                assert not twice, twice
            for port in (ours, theirs):
                late = Client(port, f"{topic}/kept")
                late.expect(("near", "n", True), ("far", "f", True))
                late.close()
        finally:
            near.close()
            far.close()
    assert "protocol" not in (tmp_path / "log").read_text().lower()


def test_bridge_state_routed_and_event_logged(cluster: LocalCluster, tmp_path: Path) -> None:
    """Its state is routed and retained; the cluster's event has its name, user and protocol level."""
    ours = cluster.port(0, "plain")
    watcher = Client(ours, "$SYS/cluster/events")
    states = Client(ours, "$SYS/broker/connection")
    with bridge(tmp_path, ours, "mqttv311", True, "notifications true\nremote_clientid plant"):
        watcher.wait(lambda: "plant" in said_of(watcher, "connected"), "the event")
        states.wait(lambda: any(payload == "1" for _, payload, _ in states.got()), "the state")
    watcher.wait(lambda: "plant" in said_of(watcher, "disconnected"), "the end")
    event = said_of(watcher, "connected")["plant"]
    assert (event["version"], event["listener"], event["reason_code"]) == (4, "plain", 0)
    assert event["address"] and said_of(watcher, "subscribed")["plant"]["filter"] == "#"
    (state,) = {topic for topic, payload, _ in states.got() if payload == "1"}
    # The bridge's last state may be in flight: a subscriber then gets it live, and no retained copy.
    retained = False
    for _ in range(2):
        late = Client(ours, f"$SYS/broker/connection/{state.partition('/')[0]}")
        late.wait(partial(heard, late), "the state")
        retained = retained or any(retain for _, _, retain in late.got())
        late.close()
    assert retained
    for client in (watcher, states):
        client.close()


def heard(client: Client) -> bool:
    return bool(client.got())


def said_of(watcher: Client, event: str) -> dict[str, Any]:
    """Return the last event of a kind, by client."""
    events = [json.loads(payload) for topic, payload, _ in watcher.got() if topic == event]
    return {one["client"]: one for one in events}
