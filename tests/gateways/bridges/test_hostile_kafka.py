"""What `bridge check` says of a Kafka that is not as it should be."""

from __future__ import annotations

import datetime
import ssl
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from conf.bridge_config import load_bridges
from gateways.bridges import kafka_sink, kafka_source
from gateways.bridges.kafka_source import check_group
from gateways.bridges.kinds import build_all
from gateways.bridges.running import BridgeFinding
from tests.gateways.bridges import kafka_mock
from tests.gateways.bridges.third_parties import running_tansu
from wire.links.authority import DevelopmentAuthority

pytestmark = pytest.mark.skipif(not kafka_mock.INSTALLED, reason="confluent-kafka is not installed (the extra kafka)")
SINK = """
[bridge.one]
kind = "kafka-sink"
cluster = ["mqtt://127.0.0.1:1"]
client_id = "kafka-1"
brokers = ["KAFKA"]
kafka = { FURTHER }
[[bridge.one.map]]
filter = "a/#"
topic = "upload"
"""
SOURCE = """
[bridge.one]
kind = "kafka-source"
cluster = ["mqtt://127.0.0.1:1"]
client_id = "kafka-2"
brokers = ["KAFKA"]
consumer_group = "orders"
[[bridge.one.map]]
filter = "from"
topic = "orders"
"""


async def look(folder: Path, text: str) -> list[BridgeFinding]:
    """Return what is found on the side of Kafka."""
    file = folder / "bridge.toml"
    file.write_text(text)
    (bridge,) = build_all(load_bridges(file, environment={}))
    return await bridge.checks[-1]()


async def test_a_certificate_of_another_name_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only that no broker answers: what is wrong is in the same line."""
    monkeypatch.setattr(kafka_sink, "LOOK_S", 2.0)
    files = DevelopmentAuthority(tmp_path / "tls", "test", datetime.datetime.now(datetime.UTC)).server("kafka")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)

    async def shake_hands(stream: trio.SSLStream[trio.SocketStream]) -> None:
        try:
            await stream.do_handshake()
            await stream.receive_some(1)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client does not believe it

    async with trio.open_nursery() as nursery:
        # The certificate names 127.0.0.1, and not this address.
        serve = partial(trio.serve_ssl_over_tcp, shake_hands, 0, context, host="127.0.0.2")
        (listener, *_) = await nursery.start(serve)
        port = listener.transport_listener.socket.getsockname()[1]
        further = f'"security.protocol" = "ssl", "ssl.ca.location" = "{files.authority}"'
        (found,) = await look(tmp_path, SINK.replace("KAFKA", f"127.0.0.2:{port}").replace("FURTHER", further))
        nursery.cancel_scope.cancel()
    assert not found.ok and "certificate verify failed" in found.text and "\n" not in found.text


@pytest.mark.parametrize("text", [SINK, SOURCE], ids=["sink", "source"])
async def test_a_kafka_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """With its reason; the library's own lines, one for each of its attempts, are not for who looks."""
    for module in (kafka_sink, kafka_source):
        monkeypatch.setattr(module, "LOOK_S", 2.0)
    (found,) = await look(tmp_path, text.replace("KAFKA", "127.0.0.1:1").replace("FURTHER", ""))
    assert not found.ok and "Connection refused" in found.text and "\n" not in found.text
    assert not caplog.records


MEMBERS = [
    ([], "STABLE", True, "in use; the server does not tell by whom"),
    ([], "EMPTY", True, "no other program"),
    (["kafka-2"], "STABLE", True, "no other program"),
    (["kafka-2", "x"], "STABLE", False, "another program reads there: x at /h; take another consumer_group"),
]


@pytest.mark.parametrize(("members", "state", "ok", "text"), MEMBERS)
def test_another_program_in_the_group_is_told(members: list[str], state: str, ok: bool, text: str) -> None:
    """It would take partitions, and their records never came; the bridge itself may be running."""
    described = SimpleNamespace(
        state=SimpleNamespace(name=state), members=[SimpleNamespace(client_id=each, host="/h") for each in members]
    )
    assert check_group(described, "kafka-2", "there") == BridgeFinding(ok, "there", text)


@pytest.mark.slow
async def test_a_group_in_use_is_told(tmp_path: Path) -> None:
    """By Tansu, which does not tell by whom."""
    with running_tansu(tmp_path, {"from": 4}) as address:
        text = SOURCE.replace("KAFKA", address)
        assert [found.ok for found in await look(tmp_path, text)] == [True, True]
        from confluent_kafka import Consumer

        told = {"bootstrap.servers": address, "group.id": "orders", "client.id": "stranger", "log_level": 0}
        other = Consumer(told)
        other.subscribe(["from"])
        with trio.fail_after(60):
            while not other.assignment():
                await trio.to_thread.run_sync(other.poll, 0.2)
            found = await look(tmp_path, text)
        other.close()
    assert found[-1].text.startswith("in use")
