"""Bridges to third-party programs: 3.1.1 brokers; kcat, kafkajs and kafka-python around Kafka.

The Kafka is librdkafka's mock cluster, by the authors of the bridge's library, or Tansu, an independent one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from mqtt.packets import Publish
from tests.gateways.bridges import kafka_mock
from tests.gateways.bridges.fault_run import BridgeProcess
from tests.gateways.bridges.publishing import gathering, publish_all
from tests.gateways.bridges.third_parties import BROKERS, javascript, library, running_tansu
from tests.patience import PATIENCE_S
from tests.stratamq.history.mosquitto import INSTALLED, running_mosquitto

pytestmark = pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed (Debian: mosquitto)")
COUNT, WINDOW = 200, 16
LOGINS = {"ejabberd": "somebody"}  # it accepts any user name, but not none
CONSUMER = """
const {Kafka, logLevel} = require('kafkajs');
const kafka = new Kafka({brokers: [process.argv[1]], logLevel: logLevel.NOTHING});
(async () => {
  const consumer = kafka.consumer({groupId: 'reader'});
  await consumer.connect();
  await consumer.subscribe({topic: 'upload', fromBeginning: true});
  const found = [], seen = new Set();
  await consumer.run({eachMessage: async ({message}) => {
    found.push([message.key.toString(), message.value.toString(), message.headers['mqtt-topic'].toString()]);
    seen.add(message.value.toString());
    if (seen.size == Number(process.argv[2])) process.stdout.write(JSON.stringify(found), () => process.exit(0));
  }});
})();
"""
PRODUCER = """
const {Kafka, logLevel} = require('kafkajs');
const kafka = new Kafka({brokers: [process.argv[1]], logLevel: logLevel.NOTHING});
(async () => {
  const producer = kafka.producer();
  await producer.connect();
  const messages = [];
  for (let n = 0; n < Number(process.argv[2]); n++)
    messages.push({key: 'k' + n % 4, value: String(n), headers: {site: 'north'}});
  await producer.send({topic: 'from', messages});
  process.exit(0);
})();
"""


@pytest.fixture(params=["mock cluster", pytest.param("tansu", marks=pytest.mark.slow)])
def kafka(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if not kafka_mock.INSTALLED:
        pytest.skip("confluent-kafka is not installed (pip install 'stratamq[kafka]')")
    topics = {"upload": 4, "from": 4}
    if request.param == "tansu":
        with running_tansu(tmp_path, topics) as address:
            yield address
        return
    mock = kafka_mock.KafkaMock(1, topics)
    yield mock.bootstraps
    mock.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", BROKERS)
async def test_bridge_both_ways_to_third_party_broker(kind: str, tmp_path: Path) -> None:
    """MQTT 3.1.1 without No Local and level 0x84: each message is on the other side, and none returns.

    Killed once: messages open then may arrive twice, and so may their echoes, since the expecting process died.
    """
    login = LOGINS.get(kind, "")
    with BROKERS[kind](tmp_path) as port:
        async with (
            running_mosquitto(tmp_path) as near,
            gathering(near.port, "near", "f/#") as here,
            gathering(port, "far", "f/#", version=4, login=login) as there,
        ):
            text = f"""
[bridge.foreign]
kind = "mqtt"
cluster = ["mqtt://127.0.0.1:{near.port}"]
client_id = "foreign"
window_messages = {WINDOW}
topics = ["f/# both 1"]
notifications = false
[bridge.foreign.remote]
addresses = ["mqtt://127.0.0.1:{port}"]
protocol = "3.1.1"
"""
            if login:
                secret = tmp_path / "secret"
                secret.touch(0o600)
                secret.write_text(login)
                text += f'username = "{login}"\npassword_file = "{secret}"\n'
            bridge = BridgeProcess(tmp_path, text)
            bridge.start()
            try:
                await bridge.ready()
                with trio.fail_after(PATIENCE_S):
                    while not any(packet.payload == b"probe" for packet in here.messages):  # its filter is granted
                        await publish_all(port, [Publish("f/probe", b"probe", 1)], version=4, login=login)
                for half in (0, 1):
                    numbers = range(half * COUNT // 2, (half + 1) * COUNT // 2)
                    await publish_all(near.port, [Publish(f"f/{n % 4}", b"near-%d" % n, 1) for n in numbers])
                    await publish_all(
                        port, [Publish(f"f/{n % 4}", b"far-%d" % n, 1) for n in numbers], version=4, login=login
                    )
                    if half == 0:
                        await there.payloads(COUNT + 1)
                        await here.payloads(COUNT + 1)
                        first = Counter(packet.payload for packet in (*here.messages, *there.messages))
                        del first[b"probe"]
                        assert len(first) == COUNT and set(first.values()) == {2}, "each is on both sides once"
                        bridge.kill()
                        bridge.start()
                        await bridge.ready()
                await there.payloads(2 * COUNT + 1)
                await here.payloads(2 * COUNT + 1)
                await trio.sleep(0.5)  # for returning messages
            finally:
                bridge.kill()
    wanted = {b"%s-%d" % (side, n) for side in (b"near", b"far") for n in range(COUNT)}
    for user in (here, there):
        counts = Counter(packet.payload for packet in user.messages if packet.payload != b"probe")
        assert set(counts) == wanted
        repeated = {payload for payload, count in counts.items() if count > 1}
        assert max(counts.values()) <= 2 and all(int(each.split(b"-")[1]) < COUNT // 2 for each in repeated), counts


SINK = """
[bridge.telemetry]
kind = "kafka-sink"
cluster = ["mqtt://127.0.0.1:PORT"]
client_id = "kafka-1"
brokers = ["KAFKA"]
kafka = { "compression.type" = "gzip" }  # kafkajs has LZ4 by a plugin only
[[bridge.telemetry.map]]
filter = "upload/+/#"
topic = "upload"
key = "{level.2}"
"""
SOURCE = """
[bridge.orders]
kind = "kafka-source"
cluster = ["mqtt://127.0.0.1:PORT"]
client_id = "kafka-2"
brokers = ["KAFKA"]
consumer_group = "orders"
[[bridge.orders.map]]
filter = "from"
topic = "orders/{key}"
qos = 1
"""


def _read(program: str, kafka: str) -> list[list[str]]:
    """Return key, value and topic of all records, read by a third-party program."""
    if program == "kcat":
        form = "%k %s %h\\n"
        command = ["kcat", "-b", kafka, "-C", "-t", "upload", "-e", "-q", "-o", "beginning", "-f", form]
        rows: list[list[str]] = []
        while len({row[1] for row in rows}) < COUNT:
            text = subprocess.run(command, timeout=300, capture_output=True, text=True, check=True).stdout
            rows = [line.split(" ", 2) for line in text.splitlines()]
        return [[key, value, _header(headers, "mqtt-topic")] for key, value, headers in rows]
    if program == "kafka-python":
        return _read_by_kafka_python(kafka)
    command = ["node", "-e", CONSUMER, "--", kafka, str(COUNT)]
    result = subprocess.run(command, timeout=300, capture_output=True, text=True, env=javascript("kafkajs"), check=True)
    assert result.stdout, result.stderr
    found: list[list[str]] = json.loads(result.stdout)
    return found


def _read_by_kafka_python(kafka: str) -> list[list[str]]:
    module = library("kafka", "kafka-python")
    consumer = module.KafkaConsumer(
        bootstrap_servers=kafka, enable_auto_commit=False, auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    consumer.assign([module.TopicPartition("upload", number) for number in range(4)])
    rows: list[list[str]] = []
    for record in consumer:
        topic = dict(record.headers)["mqtt-topic"]
        rows.append([record.key.decode(), record.value.decode(), topic.decode()])
        if len({row[1] for row in rows}) == COUNT:
            break
    consumer.close()
    return rows


def _header(text: str, name: str) -> str:
    return dict(each.split("=", 1) for each in text.split(","))[name]


def _write(program: str, kafka: str) -> None:
    if program == "kcat":
        lines = "".join(f"k{n % 4}:{n}\n" for n in range(COUNT))
        command = ["kcat", "-b", kafka, "-P", "-t", "from", "-K", ":", "-H", "site=north"]
        subprocess.run(command, timeout=300, input=lines, text=True, check=True)
        return
    if program == "kafka-python":
        producer = library("kafka", "kafka-python").KafkaProducer(bootstrap_servers=kafka)
        for number in range(COUNT):
            producer.send("from", b"%d" % number, key=b"k%d" % (number % 4), headers=[("site", b"north")])
        producer.flush(60)
        producer.close()
        return
    command = ["node", "-e", PRODUCER, "--", kafka, str(COUNT)]
    subprocess.run(command, timeout=300, env=javascript("kafkajs"), check=True)


@pytest.fixture(params=["kcat", "kafkajs", "kafka-python"])
def program(request: pytest.FixtureRequest) -> str:
    """Return an installed program; a skip within trio would not show the reason."""
    program = str(request.param)
    if program == "kcat" and "tansu" in request.node.name:
        pytest.skip("Tansu's answer to ApiVersions is none for Debian's kcat")
    if program == "kcat" and shutil.which("kcat") is None:
        pytest.skip("kcat is not installed (Debian: kcat)")
    if program == "kafkajs":
        javascript("kafkajs")
    if program == "kafka-python":
        library("kafka", "kafka-python")
    return program


async def test_kafka_sink_records_are_readable_by_other_programs(tmp_path: Path, kafka: str, program: str) -> None:
    """Keys, values, headers, and the order of each key."""
    async with running_mosquitto(tmp_path) as broker:
        bridge = BridgeProcess(tmp_path, SINK.replace("PORT", str(broker.port)).replace("KAFKA", kafka))
        bridge.start()
        try:
            await bridge.ready()
            await publish_all(broker.port, [Publish(f"upload/k{n % 4}/t", b"%d" % n, 1) for n in range(COUNT)])
            rows = await trio.to_thread.run_sync(_read, program, kafka)
        finally:
            bridge.kill()
    for key in range(4):
        assert [int(row[1]) for row in rows if row[0] == f"k{key}"] == list(range(key, COUNT, 4))
    assert all(topic == f"upload/{key}/t" for key, _, topic in rows)


async def test_kafka_source_reads_records_of_other_programs(tmp_path: Path, kafka: str, program: str) -> None:
    async with (
        running_mosquitto(tmp_path) as broker,
        gathering(broker.port, "reader", "orders/#", "bridge/#") as reader,
    ):
        bridge = BridgeProcess(tmp_path, SOURCE.replace("PORT", str(broker.port)).replace("KAFKA", kafka))
        bridge.start()
        try:
            await trio.to_thread.run_sync(_write, program, kafka)
            await reader.payloads(COUNT, 60)
        finally:
            bridge.kill()
    for key in range(4):
        mine = [int(packet.payload) for packet in reader.messages if packet.topic_name == f"orders/k{key}"]
        assert mine == list(range(key, COUNT, 4))
