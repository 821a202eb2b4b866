"""Events of a traced message become spans of one trace, in any order of arrival."""

from collections import Counter
from typing import Any

import pytest
import trio

from admin import trace_export
from admin.otlp import SpanSender
from admin.queries import Cluster
from admin.spans import LONGEST_US, QUIET_US, ROWS_MAX, Span, SpanBuilder
from admin.traces import Row
from conf.errors import UserError
from conf.url_settings import HttpUrl
from tests.patience import PATIENCE_S
from wire.messages.node_rows import TraceEventRow

ORIGIN = "e0/1/7"


def event(node: str, stage: str, at_us: int, origin: str | None = ORIGIN, **fields: Any) -> Row:
    return node, TraceEventRow(stage=stage, at_us=at_us, origin=origin, **fields)


def way() -> list[Row]:
    """Return the events of a QoS 1 message to one connected client and one with a queue."""
    return [
        event("e0", "received", 100, client_id="p", topic="a/b", qos=1),
        event("e0", "forwarded", 110),
        event("s0", "accepted", 120, partition=7),
        event("s0", "queued", 130, partition=7, session=3, seq=1, client_id="q"),
        event("s0", "committed", 160, partition=7),
        event("e1", "written", 140, client_id="c"),
        event("e1", "written", 170, None, session=3, seq=1),
        event("e0", "acknowledged", 180, client_id="p"),
        event("e1", "acked", 190, None, session=3, seq=1),
    ]


class Builder:
    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.spans = SpanBuilder(self._drop)

    def _drop(self, reason: str, count: int) -> None:
        self.dropped[reason] += count

    def ready(self, now_us: int) -> list[Span]:
        return self.spans.ready({}, now_us)


def test_a_message_is_one_trace_of_spans() -> None:
    builder = Builder()
    builder.spans.take(way(), 1_000)
    assert builder.ready(1_000 + QUIET_US - 1) == []
    spans = builder.ready(1_000 + QUIET_US)
    assert [(span.name, span.start_us, span.end_us) for span in spans] == [
        ("publish", 100, 180),
        ("resolve", 100, 110),
        ("commit", 120, 160),
        ("deliver", 130, 190),
        ("deliver", 140, 140),
    ]
    publish, others = spans[0], spans[1:]
    assert len({span.trace_id for span in spans}) == 1 and len(publish.trace_id) == 16
    assert len({span.span_id for span in spans}) == 5 and not publish.parent_id
    assert {span.parent_id for span in others} == {publish.span_id}
    assert publish.attributes["messaging.destination.name"] == "a/b"
    assert {span.attributes.get("messaging.client.id") for span in others if span.name == "deliver"} == {"c", "q"}
    assert builder.ready(10**9) == []


def test_span_identifiers_derive_from_origin() -> None:
    """Equal after a restart of the service; another message is another trace."""
    first, second = Builder(), Builder()
    for builder in (first, second):
        builder.spans.take(way(), 0)
    assert first.ready(QUIET_US) == second.ready(QUIET_US)
    first.spans.take(way(), 0)
    second.spans.take([event("e0", "received", 1, "e0/1/8")], 0)
    assert first.ready(QUIET_US)[0].trace_id != second.ready(QUIET_US)[0].trace_id


def test_spans_events_of_two_reads_are_one_message() -> None:
    """A push has its entry only; the read before had the entry's origin."""
    rows, builder = way(), Builder()
    builder.spans.take(rows[:5], 0)
    builder.spans.take(rows[5:], QUIET_US - 1)
    assert builder.ready(QUIET_US) == []
    assert len(builder.ready(2 * QUIET_US)) == 5


def test_spans_late_events_keep_identifiers() -> None:
    """The queue of a client that reconnects later: another deliver, and no second publish."""
    builder = Builder()
    builder.spans.take(way()[:5], 0)
    publish = builder.ready(QUIET_US)[0]
    late = [
        event("s0", "pushed", 9_000, session=3, seq=1, client_id="q"),
        event("e1", "acked", 9_100, client_id="q", session=3),
    ]
    builder.spans.take(late, 3 * QUIET_US)
    (span,) = builder.ready(4 * QUIET_US)
    assert (span.name, span.parent_id, span.trace_id) == ("deliver", publish.span_id, publish.trace_id)


def test_spans_busy_message_is_exported_after_maximum_time() -> None:
    builder = Builder()
    for number in range(LONGEST_US // QUIET_US * 2 + 1):
        builder.spans.take([event("e0", "received" if not number else "resolved", number)], number * QUIET_US // 2)
    assert [span.name for span in builder.ready(LONGEST_US)] == ["publish", "resolve"]


def test_spans_failure_has_reason() -> None:
    builder = Builder()
    builder.spans.take([event("e0", "received", 1), event("e0", "refused", 2, reason="not_authorized")], 0)
    assert [(span.name, span.failed) for span in builder.ready(QUIET_US)] == [("publish", "not_authorized")]


def test_spans_excess_events_are_counted() -> None:
    builder = Builder()
    builder.spans.take([event("e0", "received", at, f"e0/1/{at}") for at in range(ROWS_MAX + 5)], 0)
    assert builder.dropped == {"events": 5}
    assert len(builder.ready(QUIET_US)) == ROWS_MAX
    builder.spans.take([event("e0", "connect", 1, None, client_id="c")], QUIET_US)
    assert builder.ready(QUIET_US + LONGEST_US) == []
    builder.spans.take([event("e0", "received", at, f"e0/2/{at}") for at in range(ROWS_MAX)], 0)
    assert builder.dropped == {"events": 5}, "the connect was let go"


async def test_trace_export_failed_reads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are retried: an unreachable cluster does not stop the export."""
    monkeypatch.setattr(trace_export, "PERIOD_S", 0.001)
    reads: list[int] = []

    async def unreachable() -> Cluster:
        reads.append(1)
        raise UserError("no router answers")

    export = trace_export.TraceExport(unreachable, SpanSender(None, HttpUrl("http://127.0.0.1:1"), "c", "1"))
    assert export.unread == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(export.run)
        with trio.fail_after(PATIENCE_S):
            while export.unread < 3:
                await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    assert export.unread == len(reads)
