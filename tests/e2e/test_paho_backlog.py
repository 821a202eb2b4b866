"""Unmodified paho-mqtt with a backlog: it sends all of it at once, regardless of Receive Maximum."""

import threading
import time
from collections import Counter

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.clients.paho_client import V3, V5, PahoClient
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.patience import PATIENCE_S

MESSAGES = 200
IN_FLIGHT = 60  # of them are sent before the edge dies
TIMEOUT_S = PATIENCE_S
DRAINED_S = 20.0  # after the reconnect; 0.1 s for QoS 1 and 1.4 s for QoS 2 on an idle machine


class Publisher:
    """A client that loses its edge."""

    def __init__(self, port: int, version: MQTTProtocolVersion, qos: int, *, kept: bool) -> None:
        self.name = f"backlog/{int(version)}/{qos}/{'kept' if kept else 'new'}"
        self.once = qos == 2 and kept  # a session that ends with its edge loses its received identifiers
        self.qos = qos
        self.connects = 0
        self.connected = threading.Event()
        self.cut = threading.Event()
        self.reasons: list[str] = []
        self.open = threading.Semaphore(0)
        self.drained_s = 0.0
        self._reconnected_at = 0.0
        options = {} if version == V5 else {"clean_session": not kept}
        client_id = self.name.replace("/", "-")
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=version, **options)  # type: ignore[arg-type]
        self.paho.max_inflight_messages_set(0 if kept else 20)  # 0: unlimited, as in an older libmosquitto
        self.paho.reconnect_delay_set(1, 1)
        self.paho.on_connect = self._on_connect
        self.paho.on_disconnect = self._on_disconnect
        self.paho.on_publish = self._on_publish
        more = {}
        if version == V5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 600 if kept else 0
            more = {"properties": properties, "clean_start": False if kept else paho.MQTT_CLEAN_START_FIRST_ONLY}
        self.paho.connect("127.0.0.1", port, **more)  # type: ignore[arg-type]
        self.paho.loop_start()
        assert self.connected.wait(TIMEOUT_S)

    def _on_connect(self, *_: object) -> None:
        self.connects += 1
        self._reconnected_at = time.monotonic()
        self.connected.set()

    def _on_disconnect(self, _client: object, _data: object, _flags: object, code: object, _: object) -> None:
        self.reasons.append(str(code))
        self.connected.clear()
        self.cut.set()

    def _on_publish(self, *_: object) -> None:
        self.drained_s = time.monotonic() - self._reconnected_at
        self.open.release()

    def publish(self, first: int, last: int) -> None:
        for number in range(first, last):
            self.paho.publish(self.name, f"{self.name}-{number}", self.qos)

    def wait_drained(self) -> None:
        assert self.connected.wait(TIMEOUT_S), self.reasons
        for done in range(MESSAGES):
            assert self.open.acquire(timeout=TIMEOUT_S), f"{self.name}: {done} of {MESSAGES}; cut by {self.reasons}"

    def end(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


def come(reader: PahoClient) -> Counter[str]:
    """Return how often each payload has come."""
    return Counter(message.payload.decode() for message in reader.messages)


def test_backlog_drained_after_edge_kill() -> None:
    """3.1.1 and 5, QoS 1 and 2, 200 messages: within seconds of the reconnect, QoS 2 once, no disconnects."""
    with local_cluster("--edges", "2") as cluster:
        reader = PahoClient(cluster.port(1, "plain"), "backlog-reader", version=V5, expiry_s=600)  # a bounded queue
        reader.subscribe("backlog/#", 2)
        port = cluster.port(0, "plain")
        publishers = [
            Publisher(port, version, qos, kept=kept) for version in (V3, V5) for qos in (1, 2) for kept in (True, False)
        ]
        try:
            _lose_the_edge(cluster, publishers)
            for publisher in publishers:
                publisher.wait_drained()
            expected = {p.name: [f"{p.name}-{number}" for number in range(MESSAGES)] for p in publishers}
            reader.wait(lambda: len(come(reader)) >= sum(map(len, expected.values())), "all there", TIMEOUT_S)
            got = come(reader)
            for publisher in publishers:
                of_its = {payload for payload in got if payload.startswith(publisher.name + "-")}
                assert of_its == set(expected[publisher.name]), publisher.name
                assert publisher.connects == 2 and len(publisher.reasons) == 1, (publisher.name, publisher.reasons)
                if publisher.once:
                    twice = [p for p in expected[publisher.name] if got[p] > 1]
                    assert not twice, (publisher.name, twice)
            print({p.name: round(p.drained_s, 2) for p in publishers})
            assert max(p.drained_s for p in publishers) < DRAINED_S
        finally:
            for publisher in publishers:
                publisher.end()
            reader.close()


def _lose_the_edge(cluster: LocalCluster, publishers: list[Publisher]) -> None:
    """Kill the edge while messages are in flight, and queue the others meanwhile."""
    for publisher in publishers:
        publisher.publish(0, IN_FLIGHT)
    cluster.kill("edge-0")
    for publisher in publishers:
        assert publisher.cut.wait(TIMEOUT_S)
        publisher.publish(IN_FLIGHT, MESSAGES)
    if any(publisher.connected.is_set() for publisher in publishers):
        pytest.fail("the edge came back before the backlog stood")
