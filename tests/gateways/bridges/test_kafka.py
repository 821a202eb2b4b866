"""Kafka both ways, against librdkafka's mock cluster: killed bridges, stopped brokers, moved leaders, injected
errors.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mqtt.packets import Publish
from mqtt.properties import PropertyId
from tests.gateways.bridges import kafka_mock
from tests.gateways.bridges.fault_run import BridgeProcess
from tests.gateways.bridges.publishing import gathering, publish_all
from tests.patience import PATIENCE_S
from tests.stratamq.history.mosquitto import INSTALLED, running_mosquitto

pytestmark = [
    pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed (Debian: mosquitto)"),
    pytest.mark.skipif(not kafka_mock.INSTALLED, reason="confluent-kafka is not installed (the extra kafka)"),
]
KEYS = 5


@pytest.fixture
def kafka() -> Iterator[kafka_mock.KafkaMock]:
    mock = kafka_mock.KafkaMock(3, {"upload": 4, "all": 1, "from": 3})
    yield mock
    mock.close()


def read_topic(mock: kafka_mock.KafkaMock, topic: str, distinct: int, timeout_s: float = PATIENCE_S) -> list[Any]:
    """Return a topic's records as soon as it has this many different ones."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": mock.bootstraps, "group.id": "reader", "log_level": 0})
    partitions = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    records: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len({record.value() for record in records}) < distinct and time.monotonic() < deadline:
        records += [record for record in consumer.consume(1000, 0.1) if record.error() is None]
    consumer.close()
    return records


def sink(port: int, mock: kafka_mock.KafkaMock, folder: Path) -> str:
    return f"""
[bridge.telemetry]
kind = "kafka-sink"
cluster = ["mqtt://127.0.0.1:{port}"]
client_id = "kafka-1"
brokers = ["{mock.bootstraps}"]
window_messages = 64
dead_letter = "file:{folder}/rejected.jsonl"
kafka = {{ "topic.metadata.propagation.max.ms" = "500" }}
[[bridge.telemetry.map]]
filter = "upload/+/#"
topic = "upload"
key = "{{level.2}}"
headers = {{ site = "north" }}
[[bridge.telemetry.map]]
filter = "upload/k0/#"
topic = "all"
format = "json"
[[bridge.telemetry.map]]
filter = "nowhere/#"
topic = "denied"
[[bridge.telemetry.map]]
filter = "elsewhere/#"
topic = "missing"
"""


async def test_kafka_sink_under_faults_keeps_records_and_key_order(tmp_path: Path, kafka: kafka_mock.KafkaMock) -> None:
    """Killed twice, one broker stopped for a while, leaders moved, produce requests refused."""
    kafka.refuse_topic("denied", 29)  # topic authorization failed
    kafka.refuse_topic("missing", 3)  # unknown topic
    async with running_mosquitto(tmp_path) as broker:
        bridge = BridgeProcess(tmp_path, sink(broker.port, kafka, tmp_path))
        bridge.start()
        try:
            await bridge.ready()
            numbers = iter(range(10_000))

            async def publish(count: int) -> None:
                chosen = [next(numbers) for _ in range(count)]
                users = {PropertyId.USER_PROPERTY: [("car", "blue")]}
                await publish_all(
                    broker.port,
                    [
                        Publish(f"upload/k{each % KEYS}/t", b"%d" % each, 1, properties=dict(users.items()))
                        for each in chosen
                    ],
                )

            await publish(200)
            bridge.kill()
            bridge.start()
            kafka.produce_errors(7, 7, 19)  # request timed out, not enough replicas
            await publish(200)
            for number in range(4):
                kafka.move_leader("upload", number, 2)
            bridge.kill()
            kafka.down(3)
            bridge.start()
            await publish(200)
            kafka.up(3)
            refused = [Publish("nowhere/x", b"lost?", 1), Publish("elsewhere/x", b"lost?", 1)]
            await publish_all(broker.port, [*refused, Publish("upload/large", bytes(1_100_000), 1)])
            records = await trio.to_thread.run_sync(read_topic, kafka, "upload", 600)
            copies = await trio.to_thread.run_sync(read_topic, kafka, "all", 120)
            rejected = tmp_path / "rejected.jsonl"
            with trio.fail_after(PATIENCE_S):
                while not rejected.exists() or rejected.read_bytes().count(b"\n") < 3:
                    await trio.sleep(0.1)
        finally:
            bridge.kill()
    for key in range(KEYS):
        mine = [int(each.value()) for each in records if each.key() == b"k%d" % key]
        first = list(dict.fromkeys(mine))
        assert first == sorted(first) and len(first) == 120, f"key {key}"
    assert len({each.partition() for each in records if each.key() == b"k1"}) == 1
    headers = dict(records[0].headers())
    assert headers["mqtt-qos"] == b"1" and headers["u-car"] == b"blue" and headers["site"] == b"north"
    assert headers["stratamq-ref"].startswith(b"kafka-1:")
    assert b'"topic": "upload/k0/t"' in copies[0].value() and len({each.value() for each in copies}) >= 120
    for reason, topic in (
        ("not_authorized", "nowhere/x"),
        ("unknown_topic", "elsewhere/x"),
        ("too_large", "upload/large"),
    ):
        assert f'"reason": "{reason}", "topic": "{topic}"' in rejected.read_text()


# the group waits for the dead member
@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_kafka_source_publishes_each_record_before_commit(
    tmp_path: Path, kafka: kafka_mock.KafkaMock, killed: bool
) -> None:
    """Also killed under load; a record without a valid topic goes to the dead letter, and the offset advances."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.bootstraps, "log_level": 0})

    def produce(begin: int, end: int) -> None:
        for number in range(begin, end):
            producer.produce("from", b"%d" % number, key=b"k%d" % (number % KEYS), headers=[("site", b"north")])
        producer.produce("from", b"poison", key=b"+")
        assert producer.flush(20) == 0

    text = f"""
[bridge.orders]
kind = "kafka-source"
cluster = ["mqtt://127.0.0.1:PORT"]
client_id = "kafka-2"
brokers = ["{kafka.bootstraps}"]
consumer_group = "orders"
kafka = {{ "session.timeout.ms" = "6000" }}
[[bridge.orders.map]]
filter = "from"
topic = "orders/{{key}}"
qos = 1
"""
    async with (
        running_mosquitto(tmp_path) as broker,
        gathering(broker.port, "reader", "orders/#", "bridge/#") as reader,
    ):
        bridge = BridgeProcess(tmp_path, text.replace("PORT", str(broker.port)))
        await trio.to_thread.run_sync(produce, 0, 150)
        bridge.start()
        try:
            await reader.payloads(100)
            if killed:
                bridge.kill()
                bridge.start()
            await trio.to_thread.run_sync(produce, 150, 300)
            payloads = await reader.payloads(301)
        finally:
            bridge.kill()
    assert set(payloads) == {b"%d" % number for number in range(300)} | {b"poison"}
    for key in range(KEYS):
        mine = [int(each.payload) for each in reader.messages if each.topic_name == f"orders/k{key}"]
        first = list(dict.fromkeys(mine))
        assert first == sorted(first), f"key {key}"
    rejected = [each for each in reader.messages if each.payload == b"poison"]
    assert {each.topic_name for each in rejected} == {"bridge/orders/rejected"}
    ours = [each for each in reader.messages if each.topic_name.startswith("orders/")]
    assert ours[0].properties[PropertyId.USER_PROPERTY] == [("site", "north")]


async def test_source_killed_reads_again_within_ten_seconds(tmp_path: Path, kafka: kafka_mock.KafkaMock) -> None:
    """The dead member's session expires soon: at most 5 s longer than a first start on the same server.

    The best of three restarts counts: on a busy machine a heartbeat of the group may be late, and the mock server then
    starts another rebalance.
    """
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.bootstraps, "log_level": 0})
    text = f"""
[bridge.orders]
kind = "kafka-source"
cluster = ["mqtt://127.0.0.1:PORT"]
client_id = "kafka-3"
brokers = ["{kafka.bootstraps}"]
consumer_group = "orders"
[[bridge.orders.map]]
filter = "from"
topic = "orders/{{key}}"
qos = 1
"""
    async with running_mosquitto(tmp_path) as broker, gathering(broker.port, "reader", "orders/#") as reader:
        bridge = BridgeProcess(tmp_path, text.replace("PORT", str(broker.port)))
        times = []
        for life in range(4):
            producer.produce("from", b"%d" % life, key=b"k")
            await trio.to_thread.run_sync(producer.flush, 20)
            bridge.start()
            try:
                with trio.fail_after(PATIENCE_S):
                    while not await trio.to_thread.run_sync(bridge.rows):
                        await trio.sleep(0.05)
                began = trio.current_time()
                await reader.payloads(life + 1)
            finally:
                bridge.kill()
            times.append(trio.current_time() - began)
            if life and times[life] < min(10.0, times[0] + 5.0):
                return
    raise AssertionError(f"no restart was quick enough: first start {times[0]:.1f} s, then {times[1:]}")
