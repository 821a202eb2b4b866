"""Spans reach a collector process; an unreachable one costs a log line and a count; callers are not blocked."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from msgspec import structs

from admin import otlp
from admin.otlp import QUEUED_MAX, SpanSender, open_sender
from admin.spans import QUIET_US, SpanBuilder
from conf.errors import UserError
from conf.url_settings import HttpUrl
from tests.admin.otlp_receiver import receiver
from tests.admin.test_spans import way
from tests.free_ports import free_port
from tests.patience import PATIENCE_S

pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not here: the extra otel")
SPAN = SpanBuilder(lambda _reason, _count: None)
SPAN.take(way(), 0)
SPANS = SPAN.ready({}, QUIET_US)


@asynccontextmanager
async def sending(endpoint: str) -> AsyncIterator[SpanSender]:
    sender = open_sender(HttpUrl(endpoint), "c1", "9")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.run)
        yield sender
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.01)


async def test_sender_exports_traced_messages(tmp_path: Path) -> None:
    with receiver(tmp_path / "spans") as collector:
        async with sending(collector.endpoint) as sender:
            sender.put(SPANS)
            await until(lambda: sender.sent == len(SPANS))
        spans = collector.spans()
    assert [span["name"] for span in spans] == ["publish", "resolve", "commit", "deliver", "deliver"]
    first = spans[0]
    assert (first["parent"], first["us"], first["about"]["messaging.client.id"]) == ("", 80, "p")
    assert {span["parent"] for span in spans[1:]} == {first["span"]} and {span["trace"] for span in spans} == {
        first["trace"]
    }
    assert first["events"] == ["received", "accepted", "acknowledged"]
    assert first["resource"] == {"service.name": "stratamq", "service.namespace": "c1"}


def test_numbers_of_a_hostile_node_are_sent_as_text() -> None:
    rows = [(node, structs.replace(one, at_us=2**63, seq=2**64 - 1, partition=-(2**63))) for node, one in way()]
    hostile = SpanBuilder(lambda _reason, _count: None)
    hostile.take(rows, 0)
    assert b"18446744073709551615" in otlp.encode(hostile.ready({}, 2**54), "c1", "9")


async def test_sender_unreachable_collector_logs_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is reachable again, it receives the queue."""
    monkeypatch.setattr(otlp, "RETRY_S", (0.01,) * 1_000)
    port = free_port()
    caplog.set_level(logging.INFO)
    async with sending(f"http://127.0.0.1:{port}") as sender:
        sender.put(SPANS)
        await until(lambda: sender.failures >= 3)
        assert [one.levelname for one in caplog.records if one.name == "admin.otlp"] == ["WARNING"]
        with receiver(tmp_path / "spans", port) as collector:
            await until(lambda: sender.sent == len(SPANS))
            assert len(collector.spans()) == len(SPANS)
    assert [one.levelname for one in caplog.records if one.name == "admin.otlp"] == ["WARNING", "INFO"]
    assert not sender.dropped


async def test_sender_refused_spans_are_dropped_and_counted(tmp_path: Path) -> None:
    with receiver(tmp_path / "spans", status=400) as collector:
        async with sending(collector.endpoint) as sender:
            sender.put(SPANS)
            await until(lambda: bool(sender.dropped))
    assert (dict(sender.dropped), sender.sent, sender.failures) == ({"refused": len(SPANS)}, 0, 1)


def test_sender_full_queue_drops_oldest() -> None:
    sender = open_sender(HttpUrl("http://127.0.0.1:9"), "c1", "9")
    sender.put(SPANS * (QUEUED_MAX // len(SPANS) + 1))
    assert sender.queued == QUEUED_MAX
    assert sender.dropped == {"queue_full": len(SPANS) * (QUEUED_MAX // len(SPANS) + 1) - QUEUED_MAX}


def test_open_sender_without_libraries_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.proto.collector.trace.v1", None)
    with pytest.raises(UserError, match=r"stratamq\[otel\]"):
        open_sender(HttpUrl("http://127.0.0.1:9"), "c1", "9")
