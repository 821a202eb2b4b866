"""A real exporter that reads ``$SYS``: its series of an edge have the names and types of those of Mosquitto.

mqtt-exporter subscribes by plain MQTT and exports each numeric payload to Prometheus.
It is installed separately, because it needs other versions of libraries.
Slow: ``pytest -m slow tests/e2e/test_sys_exporter.py``; needs the package index, and Debian's mosquitto.
"""

import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.clients.mosquitto_process import EXECUTABLE, mosquitto
from tests.clients.paho_client import PahoClient
from tests.e2e.local_cluster import local_cluster
from tests.free_ports import free_port
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow

THEIRS_MIN = 45  # of 2.0.11's 53 names, `version` and `uptime` are texts
Series = dict[tuple[str, str], float]  # by name and topic


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter that has the exporter."""
    folder = tmp_path_factory.mktemp("exporter")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    made = subprocess.run([python, "-m", "pip", "-q", "install", "mqtt-exporter"], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"mqtt-exporter cannot be installed: {made.stderr.strip().splitlines()[-1]}")
    return python


@contextlib.contextmanager
def exported(python: Path, broker: int, **more: str) -> Iterator[int]:
    """Run the exporter on a broker; yield the port of its page."""
    port = free_port()
    settings = {
        "MQTT_PORT": str(broker),
        "MQTT_TOPIC": "$SYS/broker/#",
        "KEEP_FULL_TOPIC": "True",
        "PROMETHEUS_ADDRESS": "127.0.0.1",
        "PROMETHEUS_PORT": str(port),
        "LOG_LEVEL": "ERROR",
        **more,
    }
    with subprocess.Popen([python, "-m", "mqtt_exporter"], env={**os.environ, **settings}) as process:
        try:
            yield port
        finally:
            process.terminate()


def series(port: int) -> Series:
    """Return the exporter's series of the broker."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as page:
            text = page.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return {}  # it starts
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            topic = sample.labels.get("topic", "")
            if topic.startswith("$sys_") and not family.name.startswith("mqtt_message"):
                assert family.type == "gauge", family
                found[sample.name, topic] = sample.value
    return found


def until(port: int, least: int) -> Series:
    """Return its series once there are at least this many."""
    deadline = time.monotonic() + PATIENCE_S
    while len(found := series(port)) < least:
        assert time.monotonic() < deadline, sorted(found)
        time.sleep(0.2)
    return found


def published(port: int) -> None:
    """Have a message go through a broker."""
    client = PahoClient(port)
    client.subscribe("a/b", 1)
    client.publish("a/b", "12345", 1)
    client.wait(lambda: bool(client.messages), "the message")
    client.close()


def test_exporter_series_of_edge_equal_those_of_mosquitto(exporter: Path, tmp_path: Path) -> None:
    """Each of Mosquitto's series exists here; numeric ones are numeric."""
    if not Path(EXECUTABLE).exists():
        pytest.skip("mosquitto is not installed (Debian: mosquitto)")
    with mosquitto(tmp_path, "allow_anonymous true", "sys_interval 1") as broker, exported(exporter, broker) as port:
        time.sleep(1.0)
        published(broker)
        theirs = until(port, THEIRS_MIN)
    with (
        local_cluster("--edges", "1", "--storages", "1", "--set", "edge.sys_interval_s=1") as cluster,
        exported(exporter, cluster.port(0, "plain")) as port,
    ):
        published(cluster.port(0, "plain"))
        ours = until(port, len(theirs))
        assert theirs.keys() - ours.keys() == set()
        deadline = time.monotonic() + PATIENCE_S
        while ours["mqtt_received", "$sys_broker_publish_messages"] < 1:
            assert time.monotonic() < deadline, ours
            time.sleep(0.2)
            ours = series(port)
        assert ours["mqtt_sent", "$sys_broker_publish_messages"] >= 1
        assert ours["mqtt_received", "$sys_broker_publish_bytes"] >= 5
        assert ours["mqtt_connected", "$sys_broker_clients"] >= 1
        assert ours["mqtt_1min", "$sys_broker_load_messages_received"] > 0
