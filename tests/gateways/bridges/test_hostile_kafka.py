"""Findings of `bridge check` for a misconfigured or missing Kafka."""

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


async def run_check(folder: Path, text: str) -> list[BridgeFinding]:
    """Return the findings about Kafka."""
    file = folder / "bridge.toml"
    file.write_text(text)
    (bridge,) = build_all(load_bridges(file, environment={}))
    return await bridge.checks[-1]()


async def test_check_kafka_certificate_mismatch_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line contains the cause, not only that no broker answers."""
    monkeypatch.setattr(kafka_sink, "REQUEST_S", 2.0)
    files = DevelopmentAuthority(tmp_path / "tls", "test", datetime.datetime.now(datetime.UTC)).server("kafka")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)

    async def do_handshake(stream: trio.SSLStream[trio.SocketStream]) -> None:
        try:
            await stream.do_handshake()
            await stream.receive_some(1)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client refuses the certificate

    async with trio.open_nursery() as nursery:
        # The certificate names 127.0.0.1, not this address.
        serve = partial(trio.serve_ssl_over_tcp, do_handshake, 0, context, host="127.0.0.2")
        (listener, *_) = await nursery.start(serve)
        port = listener.transport_listener.socket.getsockname()[1]
        further = f'"security.protocol" = "ssl", "ssl.ca.location" = "{files.authority}"'
        (found,) = await run_check(tmp_path, SINK.replace("KAFKA", f"127.0.0.2:{port}").replace("FURTHER", further))
        nursery.cancel_scope.cancel()
    assert not found.ok and "certificate verify failed" in found.text and "\n" not in found.text


@pytest.mark.parametrize("text", [SINK, SOURCE], ids=["sink", "source"])
async def test_check_unreachable_kafka_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """With its cause; the library's lines for each attempt are suppressed."""
    for module in (kafka_sink, kafka_source):
        monkeypatch.setattr(module, "REQUEST_S", 2.0)
    (found,) = await run_check(tmp_path, text.replace("KAFKA", "127.0.0.1:1").replace("FURTHER", ""))
    assert not found.ok and "Connection refused" in found.text and "\n" not in found.text
    assert not caplog.records


MEMBERS = [
    ([], "STABLE", True, "in use; the server does not list the members"),
    ([], "EMPTY", True, "no other program"),
    (["kafka-2"], "STABLE", True, "no other program"),
    (["kafka-2", "x"], "STABLE", False, "another program reads there: x at /h; set another consumer_group"),
]


@pytest.mark.parametrize(("members", "state", "ok", "text"), MEMBERS)
def test_check_group_reports_other_members(members: list[str], state: str, ok: bool, text: str) -> None:
    """It would be assigned partitions, whose records would be missing; the bridge itself may be running."""
    described = SimpleNamespace(
        state=SimpleNamespace(name=state), members=[SimpleNamespace(client_id=each, host="/h") for each in members]
    )
    assert check_group(described, "kafka-2", "there") == BridgeFinding(ok, "there", text)


@pytest.mark.slow
async def test_check_group_in_use_is_reported(tmp_path: Path) -> None:
    """By Tansu, which does not list the members."""
    with running_tansu(tmp_path, {"from": 4}) as address:
        text = SOURCE.replace("KAFKA", address)
        assert [found.ok for found in await run_check(tmp_path, text)] == [True, True]
        from confluent_kafka import Consumer

        options = {"bootstrap.servers": address, "group.id": "orders", "client.id": "stranger", "log_level": 0}
        other = Consumer(options)
        other.subscribe(["from"])
        with trio.fail_after(60):
            while not other.assignment():
                await trio.to_thread.run_sync(other.poll, 0.2)
            found = await run_check(tmp_path, text)
        other.close()
    assert found[-1].text.startswith("in use")
