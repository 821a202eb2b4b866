"""A real Mosquitto bridge, ``topic # both``: nothing comes back, and RETAIN stays what it was."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.e2e.local_cluster import LocalCluster, local_cluster

EXECUTABLE = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
TIMEOUT_S = 20.0
EACH = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    if not Path(EXECUTABLE).exists():
        pytest.skip("mosquitto is not installed (Debian: mosquitto)")
    with local_cluster("--edges", "1") as running:
        yield running


@contextlib.contextmanager
def bridge(folder: Path, ours: int, version: str, clean: bool) -> Iterator[int]:
    """Run Mosquitto with a bridge to our port; yield its own port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nconnection up-{version}-{clean}\naddress 127.0.0.1:{ours}\n"
        f"topic # both 2\nbridge_protocol_version {version}\ncleansession {str(clean).lower()}\n"
        "notifications false\nrestart_timeout 1\nbridge_attempt_unsubscribe false\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([EXECUTABLE, "-c", str(config), "-v"], stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(10)


class Client:
    """Subscribes to everything below a topic, and counts."""

    def __init__(self, port: int, topic: str) -> None:
        self.got: Counter[tuple[str, str, bool]] = Counter()
        self.topic = topic
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv311)
        self.paho.on_message = self._on_message
        self.paho.on_connect = self._on_connect
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self.paho.connect("127.0.0.1", port)
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        self.paho.loop_start()

    def _on_connect(self, *_: object) -> None:
        self.paho.subscribe(f"{self.topic}/#", 2)

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        self.got[message.topic, message.payload.decode(), message.retain] += 1

    def publish(self, name: str, payload: str, qos: int = 1, retain: bool = False) -> None:
        self.paho.publish(f"{self.topic}/{name}", payload, qos, retain).wait_for_publish(TIMEOUT_S)

    def has(self, name: str, payload: str) -> bool:
        return (f"{self.topic}/{name}", payload, False) in self.got

    def wait(self, *expected: tuple[str, str, bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        names = {(f"{self.topic}/{name}", payload, retain) for name, payload, retain in expected}
        while not names <= set(self.got):
            assert time.monotonic() < deadline, (names - set(self.got), self.got)
            time.sleep(0.02)

    def end(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "stored"])
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311"])
def test_nothing_comes_back_over_a_bridge(cluster: LocalCluster, tmp_path: Path, version: str, clean: bool) -> None:
    """Levels 0x83 and 0x84: each message is on the other side, once, and retained there when it was here."""
    ours = cluster.port(0, "plain")
    topic = f"bridge/{version}/{clean}"
    with bridge(tmp_path, ours, version, clean) as theirs:
        near, far = Client(ours, topic), Client(theirs, topic)
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not (near.has("far", "first") and far.has("near", "first")):  # QoS 0, or it would be kept for later
                near.publish("near", "first", 0)
                far.publish("far", "first", 0)
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-2000:]
                time.sleep(0.05)
            for number in range(EACH):
                near.publish(f"near/{number}", "n", number % 3)
                far.publish(f"far/{number}", "f", number % 3)
            near.publish("kept/near", "n", retain=True)
            far.publish("kept/far", "f", retain=True)
            sent = [(f"near/{number}", "n", False) for number in range(EACH)]
            sent += [(f"far/{number}", "f", False) for number in range(EACH)]
            sent += [("kept/near", "n", False), ("kept/far", "f", False)]
            for side in (near, far):
                side.wait(*sent)
            near.publish("last", "near")
            far.publish("last", "far")
            for side in (near, far):  # whatever would have come back has come by now
                side.wait(("last", "near", False), ("last", "far", False))
                twice = {key: count for key, count in side.got.items() if count > 1 and key[1] != "first"}
                assert not twice, twice
            for port in (ours, theirs):
                late = Client(port, f"{topic}/kept")
                late.wait(("near", "n", True), ("far", "f", True))
                late.end()
        finally:
            near.end()
            far.end()
    assert "protocol" not in (tmp_path / "log").read_text().lower()
