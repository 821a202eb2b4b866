"""Spans of traced messages: what happened to one message at all nodes, as OpenTelemetry names it.

Names of traces and spans are made from the message's origin, so that two services, or one that began anew, tell the
same. Times are by this service's clock. Rules: docs/adr/0166-spans-of-traces.md. Sans-IO.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from admin.traces import ClockOffset, NodeTraceEvent, Row, in_order

__all__ = ["Span", "SpanBuilder", "spans_of"]

ROWS_MAX = 16_384  # of one trace, gathered at once
QUIET_US = 2_000_000  # without a further event, a message is told
LONGEST_US = 10_000_000  # then it is told though events still come: those are told behind it, under the same names
OF_PUBLISH = ("received", "refused", "accepted", "retained", "acknowledged")
RESOLVED, COMMITTED = ("resolved", "forwarded"), ("committed",)
ENDS = ("acked", "written", "expired", "dropped")  # of one copy
BEGINS = ("queued", "pushed", "redispatched", "matched")


class Span(NamedTuple):
    """One span."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes  # b"" of the first
    name: str  # "publish", "resolve", "commit", "deliver"
    start_us: int
    end_us: int
    attributes: Mapping[str, str | int]
    events: Sequence[NodeTraceEvent]
    failed: str  # why, "" if it did not


class SpanBuilder:
    """Events of one trace, gathered until their messages are quiet.

    Args:
        drop: Called with a reason and a count of events that are told nobody.
    """

    def __init__(self, drop: Callable[[str, int], None]) -> None:
        self._drop = drop
        self._rows: list[tuple[int, Row]] = []  # when each was read

    def take(self, rows: Sequence[Row], now_us: int) -> None:
        """Take events as nodes told them."""
        self._rows += [(now_us, row) for row in rows]
        if (over := len(self._rows) - ROWS_MAX) > 0:
            del self._rows[:over]
            self._drop("events", over)

    def ready(self, clocks: Mapping[str, ClockOffset], now_us: int) -> list[Span]:
        """Return the spans of messages that are quiet; what belongs to no message (a connect) is let go."""
        read_at = {id(row[1]): at_us for at_us, row in self._rows}
        messages: dict[str, list[NodeTraceEvent]] = {}
        for one in in_order([row for _, row in self._rows], clocks):
            if one.event.origin:
                messages.setdefault(one.event.origin, []).append(one)
        spans: list[Span] = []
        gone: set[int] = set()
        for origin, told in messages.items():
            read = [read_at[id(one.event)] for one in told]
            if now_us - max(read) >= QUIET_US or now_us - min(read) >= LONGEST_US:
                spans += spans_of(origin, told)
                gone |= {id(one.event) for one in told}
        kept = [(at_us, row) for at_us, row in self._rows if id(row[1]) not in gone]
        self._rows = [(at_us, row) for at_us, row in kept if now_us - at_us < LONGEST_US or row[1].origin in messages]
        return spans


def _id(size: int, *words: object) -> bytes:
    return hashlib.sha256("\0".join(map(str, words)).encode()).digest()[:size]


def spans_of(origin: str, told: Sequence[NodeTraceEvent]) -> list[Span]:
    """Return a message's spans, its publish first: resolve, commit of each partition, deliver to each client.

    Events that came behind the others make spans of their own, without another publish.
    """
    trace_id, first = _id(16, origin), _id(8, origin, "publish")
    received = next((one for one in told if one.event.stage == "received"), told[0])
    begins = min(one.at_us for one in told)
    publish = [one for one in told if one.event.stage in OF_PUBLISH]
    answered = [one.at_us for one in told if one.event.stage in ("acknowledged", "refused")]
    ends = max(answered, default=max(one.at_us for one in told))
    facts: dict[str, str | int] = {
        "messaging.system": "mqtt",
        "messaging.operation.type": "publish",
        "messaging.destination.name": received.event.topic or "",
        "messaging.client.id": received.event.client_id or "",
        "messaging.message.id": origin,
        "stratamq.node": received.node,
    }
    spans: list[Span] = []
    if any(one.event.stage in ("received", "refused") for one in told):
        spans.append(
            Span(trace_id, first, b"", "publish", begins, max(begins, ends), facts, publish, _failure(publish))
        )

    def add(
        name: str, key: object, events: Sequence[NodeTraceEvent], start_us: int, about: Mapping[str, str | int]
    ) -> None:
        end_us = max((one.at_us for one in events), default=start_us)
        start_us = min(start_us, end_us)
        span_id = _id(8, origin, name, key)
        shared = {"messaging.system": "mqtt", "messaging.message.id": origin, **about}
        spans.append(Span(trace_id, span_id, first, name, start_us, end_us, shared, events, _failure(events)))

    resolved = [one for one in told if one.event.stage in RESOLVED]
    if resolved:
        add("resolve", "", resolved, received.at_us, {"stratamq.node": resolved[0].node})
    for partition, events in _by(told, COMMITTED, lambda one: one.event.partition).items():
        before = [one for one in told if one.event.stage in ("accepted", "queued")]
        begun = [one.at_us for one in before if one.event.partition == partition]
        about = {"stratamq.node": events[0].node}
        if partition is not None:
            about["stratamq.partition"] = str(partition)
        add("commit", partition, events, min(begun, default=events[0].at_us), about)
    for client, events in _by(told, (*BEGINS, *ENDS), _copy).items():
        ended = [one for one in events if one.event.stage in ENDS]
        if ended and client is not None:
            about = {"messaging.operation.type": "deliver", "stratamq.node": ended[-1].node}
            if name := next((one.event.client_id for one in events if one.event.client_id), None):
                about["messaging.client.id"] = name
            add("deliver", client, events, min(one.at_us for one in events), about)
    return spans


def _copy(told: NodeTraceEvent) -> int | str | None:
    """Return whose copy an event is about: pushes name the session alone, a connection without one its client."""
    return told.event.session if told.event.session is not None else told.event.client_id


def _by(
    told: Sequence[NodeTraceEvent], stages: Sequence[str], key: Callable[[NodeTraceEvent], object]
) -> dict[object, list[NodeTraceEvent]]:
    found: dict[object, list[NodeTraceEvent]] = {}
    for one in told:
        if one.event.stage in stages:
            found.setdefault(key(one), []).append(one)
    return found


def _failure(events: Sequence[NodeTraceEvent]) -> str:
    for one in events:
        if one.event.stage in ("refused", "dropped", "expired"):
            return one.event.reason or str(one.event.stage)
    return ""
