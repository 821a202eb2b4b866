"""Bridges of a StrataMQ cluster: an active/standby pair with certificates, and client events for Kafka."""

from __future__ import annotations

import base64
import datetime
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mqtt.codec import encode_packet
from mqtt.packets import Connect, Publish, Subscribe, SubscriptionRequest, Unsubscribe
from mqtt.properties import PropertyId
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.gateways.bridges import kafka_mock
from tests.gateways.bridges.fault_run import BridgeProcess, settings
from tests.gateways.bridges.publishing import gathering, publish_all
from tests.gateways.bridges.test_kafka import read_topic
from tests.gateways.bridges.test_standby import until
from tests.patience import PATIENCE_S
from tests.stratamq.history.mosquitto import INSTALLED, running_mosquitto
from wire.links.authority import DevelopmentAuthority

TOOK_S_MAX = 3.0
NOW = datetime.datetime.now(datetime.UTC)
EVENTS = ("connected", "disconnected", "subscribed", "unsubscribed", "session_expired")
FIELDS = {"client", "user", "listener", "address", "version", "reason_code", "filter", "qos", "at_ms"}
ROLES = """
[roles.gateway]
publish = ["#", "$gateway/#"]
subscribe = ["#", "$gateway/#", "$SYS/#"]
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    shape = ("--edges", "1", "--storages", "1", "--routers", "1")
    with local_cluster(*shape, "--set", "edge.events=true", "--set", "storage.events=true") as running:
        yield running


@pytest.fixture(scope="module")
def edge(cluster: LocalCluster) -> Iterator[ExtraEdge]:
    """An edge with a listener in clear and one for certificates, including those of gateways."""
    devices = DevelopmentAuthority(cluster.data / "devices", "devices", NOW)
    roles = cluster.data / "gateways.toml"
    roles.touch(0o600)
    roles.write_text(ROLES)
    rules = {"roles_file": str(roles), "authenticated_roles": ["gateway"], "anonymous_roles": ["gateway"]}
    mutual = {"tls": True, "client_ca": str(devices.certificate), "require_client_certificate": True, **rules}
    listeners = {"mutual": mutual, "clear": {"tls": False, **rules}}
    with extra_edge(cluster, listeners, "edge-7", events=True, publisher_properties=["up/#"]) as running:
        yield running


def state(process: BridgeProcess) -> str:
    rows = process.rows()
    return str(rows[0]["state"]) if rows else ""


@pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed (Debian: mosquitto)")
@pytest.mark.parametrize("bar_s", [60.0, pytest.param(TOOK_S_MAX, marks=pytest.mark.slow)])
async def test_standby_takes_over_with_gateway_certificate(
    cluster: LocalCluster, edge: ExtraEdge, tmp_path: Path, bar_s: float
) -> None:
    """On $gateway/presence: three takeovers after kill -9 without loss, and never two active processes."""
    files = DevelopmentAuthority(cluster.data / "tls", "stratamq", NOW).gateway("site")
    lines = f"""
group = "site-{bar_s:g}"
authority = "{cluster.authority}"
certificate = "{files.certificate}"
key = "{files.key}"
"""
    count = 0
    for name in ("one", "two", "far"):
        (tmp_path / name).mkdir()
    async with running_mosquitto(tmp_path / "far") as far, gathering(far.port, "reader", "f/#") as reader:
        text = settings(edge.port("clear"), far.port, lines)
        text = text.replace(f"mqtt://127.0.0.1:{edge.port('clear')}", f"mqtts://localhost:{edge.port('mutual')}")
        pair = [
            BridgeProcess(tmp_path / name, text.replace("under-test", f"site-{bar_s:g}")) for name in ("one", "two")
        ]
        for number, process in enumerate(pair):
            named = process.file.read_text().replace("[gateway]", f'[gateway]\nid = "process-{number}"')
            process.file.write_text(named)
        active, other = pair
        try:
            active.start()
            await until(active, "active")
            other.start()
            for _ in range(3):
                await until(other, "standby")
                await publish_all(
                    edge.port("clear"), [Publish(f"f/{n % 3}", b"%d" % n, 1) for n in range(count, count + 50)]
                )
                count += 50
                active.kill()
                killed_at = time.monotonic()
                await until(other, "active")
                assert time.monotonic() - killed_at <= bar_s
                active.start()
                active, other = other, active
                await until(other, "standby")
                assert await trio.to_thread.run_sync(state, active) == "active"
            payloads = await reader.payloads(count)
        finally:
            for process in pair:
                if process.process is not None and process.process.poll() is None:
                    process.kill()
    assert {int(payload) for payload in payloads} == set(range(count))


@pytest.mark.skipif(not kafka_mock.INSTALLED, reason="confluent-kafka is not installed (the extra kafka)")
async def test_kafka_sink_receives_each_client_event(edge: ExtraEdge, tmp_path: Path) -> None:
    """The five events as objects; a message's publisher is named by the edge, whatever its client wrote."""
    kafka = kafka_mock.KafkaMock(1, {**dict.fromkeys((f"on-{event}" for event in EVENTS), 1), "up": 1})
    maps = [("up/#", "up", "json"), *((f"$SYS/cluster/events/{event}", f"on-{event}", "raw") for event in EVENTS)]
    text = f"""
[bridge.telemetry]
kind = "kafka-sink"
cluster = ["mqtt://127.0.0.1:{edge.port("clear")}"]
client_id = "kafka-events"
brokers = ["{kafka.bootstraps}"]
"""
    for topic_filter, topic, form in maps:
        text += f'[[bridge.telemetry.map]]\nfilter = "{topic_filter}"\ntopic = "{topic}"\nformat = "{form}"\n'
    bridge = BridgeProcess(tmp_path, text)
    bridge.start()

    def read(topic: str, distinct: int) -> list[dict[str, Any]]:
        return [json.loads(record.value()) for record in read_topic(kafka, topic, distinct)]

    try:
        await bridge.ready()
        async with gathering(edge.port("clear"), "device") as user:
            assert user.client is not None
            with trio.fail_after(PATIENCE_S):
                await user.is_connected.wait()
                for request in (Subscribe(0, [SubscriptionRequest("a/+", 1)]), Unsubscribe(0, ["a/+"])):
                    answered = trio.Event()
                    user.client.ask(request, lambda _, answered=answered: answered.set())  # type: ignore[misc]
                    await answered.wait()
            await publish_all(edge.port("clear"), [Publish("up/t", b"31", 1)])
        async with await trio.open_tcp_stream("127.0.0.1", edge.port("clear")) as brief:
            expires = {PropertyId.SESSION_EXPIRY_INTERVAL: 1}
            await brief.send_all(encode_packet(Connect("brief", False, 30, 5, properties=dict(expires.items())), 5))
            assert (await brief.receive_some(100))[3] == 0
        found = {event: await trio.to_thread.run_sync(read, f"on-{event}", 1) for event in EVENTS}
        (record, *_) = await trio.to_thread.run_sync(read, "up", 1)
    finally:
        bridge.kill()
        kafka.close()
    mine = {
        event: [each for each in events if each["client"] in ("device", "brief")] for event, events in found.items()
    }
    for event, events in mine.items():
        assert events and events[0].keys() == FIELDS, (event, found)
    assert mine["session_expired"][0]["client"] == "brief" and mine["unsubscribed"][0]["filter"] == "a/+"
    assert mine["connected"][0]["listener"] == "clear" and mine["subscribed"][0]["filter"] == "a/+"
    assert record["client_id"] == "publisher" and base64.b64decode(record["payload"]) == b"31"
    assert record["topic"] == "up/t" and record["at_ms"] > 0 and record.keys() >= {"qos", "retain", "user_name"}
