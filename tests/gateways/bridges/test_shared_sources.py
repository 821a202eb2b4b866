"""Sources shared by several consumers: a takeover loses and repeats no record."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
import trio

from tests.gateways.bridges import kafka_mock
from tests.gateways.bridges.fault_run import BridgeProcess
from tests.gateways.bridges.publishing import gathering
from tests.gateways.bridges.test_other_sinks import running_redis, settings
from tests.patience import PATIENCE_S
from tests.stratamq.history.mosquitto import INSTALLED, running_mosquitto

pytestmark = pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed (Debian: mosquitto)")
RECORDS = 6000


async def assigned(bridge: BridgeProcess) -> None:
    with trio.fail_after(120):
        while not (rows := await trio.to_thread.run_sync(bridge.rows)) or rows[0]["waits_for"]:
            await trio.sleep(0.1)


@pytest.mark.slow  # the mock cluster takes 15 s and more for the two steps of a cooperative rebalance
@pytest.mark.skipif(not kafka_mock.INSTALLED, reason="confluent-kafka is not installed (the extra kafka)")
async def test_kafka_source_commits_before_revocation(tmp_path: Path) -> None:
    """A second process joins the group and leaves it while records arrive: each is published once."""
    from confluent_kafka import Producer

    kafka = kafka_mock.KafkaMock(1, {"from": 4})
    producer = Producer({"bootstrap.servers": kafka.bootstraps, "log_level": 0})

    async def produce(begin: int, end: int) -> None:
        for number in range(begin, end):
            producer.produce("from", b"%d" % number, partition=number % 4)
            if number % 20 == 0:
                await trio.sleep(0.1)
        assert await trio.to_thread.run_sync(producer.flush, 20) == 0

    text = f"""
[bridge.orders]
kind = "kafka-source"
cluster = ["mqtt://127.0.0.1:PORT"]
client_id = "CLIENT"
brokers = ["{kafka.bootstraps}"]
consumer_group = "orders"
kafka = {{ "heartbeat.interval.ms" = "300", "session.timeout.ms" = "6000" }}
[[bridge.orders.map]]
filter = "from"
topic = "orders/all"
qos = 1
"""
    pair = []
    async with running_mosquitto(tmp_path) as broker, gathering(broker.port, "reader", "orders/#") as reader:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            lines = text.replace("PORT", str(broker.port)).replace("CLIENT", name)
            pair.append(BridgeProcess(tmp_path / name, lines))
        one, two = pair
        try:
            async with trio.open_nursery() as nursery:
                one.start()
                await trio.to_thread.run_sync(producer.flush, 1)
                nursery.start_soon(produce, 0, RECORDS)
                await reader.payloads(50)
                two.start()
                await assigned(two)  # it has partitions, which were revoked from the first one
            await reader.payloads(RECORDS, 60)  # records open at a stop are read again
            await trio.sleep(0.5)  # for the last acknowledgements
            await trio.to_thread.run_sync(two.kill, 15)
            await produce(RECORDS, RECORDS + 100)
            payloads = await reader.payloads(RECORDS + 100, 60)
        finally:
            for process in pair:
                if process.process is not None and process.process.poll() is None:
                    process.kill()
            kafka.close()
    counts = Counter(map(int, payloads))
    assert set(counts) == set(range(RECORDS + 100))
    twice = sorted(number for number, count in counts.items() if count > 1)
    assert not twice, f"{len(twice)} arrived twice, {twice[0]} to {twice[-1]}"


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed (Debian: redis-server)")
async def test_redis_source_claims_entries_of_dead_consumer(tmp_path: Path) -> None:
    """Another consumer of the group has read them, and died; entries pending for a shorter time stay assigned."""
    redis = pytest.importorskip("redis", reason="the extra redis is not installed")
    async with (
        running_mosquitto(tmp_path) as broker,
        running_redis(tmp_path) as port,
        gathering(broker.port, "reader", "back/#") as reader,
    ):
        client = redis.Redis(port=port)
        client.xgroup_create("stream", "g", id="0", mkstream=True)
        for number in range(30):
            client.xadd("stream", {"payload": b"%d" % number})
        [(_, entries)] = client.xreadgroup("g", "dead", {"stream": ">"}, count=20)
        ids = [name for name, _ in entries]
        client.xclaim("stream", "g", "dead", 0, ids[:10], idle=3_600_000)  # pending for an hour
        lines = f'redis_port = {port}\nconsumer_group = "g"\nclaim_s = 600.0'
        text = settings("redis-source", broker.port, lines, 'topic = "back/x"').replace('"u/#"', '"stream"')
        bridge = BridgeProcess(tmp_path, text)
        bridge.start()
        try:
            payloads = await reader.payloads(20)
            with trio.fail_after(PATIENCE_S):
                while await trio.to_thread.run_sync(lambda: client.xpending("stream", "g")["pending"]) > 10:
                    await trio.sleep(0.05)
            (pending,) = client.xpending("stream", "g")["consumers"]
            assert pending == {"name": b"dead", "pending": 10}
        finally:
            bridge.kill()
    assert sorted(map(int, payloads)) == [*range(10), *range(20, 30)]
