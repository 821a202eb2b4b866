"""OpenTelemetry spans of traced messages: the events of one message at all nodes.

Trace and span identifiers are derived from the message's origin, so they are equal after a restart and at other
services. Times are by this service's clock. Rules: docs/adr/0166-spans-of-traces.md. Sans-IO.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from admin.traces import ClockOffset, NodeTraceEvent, Row, in_order

__all__ = ["Span", "SpanBuilder", "spans_of"]

ROWS_MAX = 16_384  # events of one trace in the buffer
QUIET_US = 2_000_000  # time without a further event until a message is exported
LONGEST_US = 10_000_000  # time until it is exported in any case; later events follow under the same identifiers
OF_PUBLISH = ("received", "refused", "accepted", "retained", "acknowledged")
RESOLVED, COMMITTED = ("resolved", "forwarded"), ("committed",)
ENDS = ("acked", "written", "expired", "dropped")  # of one copy
BEGINS = ("queued", "pushed", "redispatched", "matched")


class Span(NamedTuple):
    """One span."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes  # b"" of the root span
    name: str  # "publish", "resolve", "commit", "deliver"
    start_us: int
    end_us: int
    attributes: Mapping[str, str | int]
    events: Sequence[NodeTraceEvent]
    failed: str  # reason, "" on success


class SpanBuilder:
    """Buffer of one trace's events until their messages are quiet.

    Args:
        drop: Called with a reason and the number of events that are not exported.
    """

    def __init__(self, drop: Callable[[str, int], None]) -> None:
        self._drop = drop
        self._rows: list[tuple[int, Row]] = []  # time of reading

    def take(self, rows: Sequence[Row], now_us: int) -> None:
        """Add events of nodes."""
        self._rows += [(now_us, row) for row in rows]
        if (over := len(self._rows) - ROWS_MAX) > 0:
            del self._rows[:over]
            self._drop("events", over)

    def ready(self, clocks: Mapping[str, ClockOffset], now_us: int) -> list[Span]:
        """Return the spans of quiet messages; events without a message, such as a connect, are discarded."""
        read_at = {id(row[1]): at_us for at_us, row in self._rows}
        messages: dict[str, list[NodeTraceEvent]] = {}
        for item in in_order([row for _, row in self._rows], clocks):
            if item.event.origin:
                messages.setdefault(item.event.origin, []).append(item)
        spans: list[Span] = []
        exported: set[int] = set()
        for origin, events in messages.items():
            read = [read_at[id(item.event)] for item in events]
            if now_us - max(read) >= QUIET_US or now_us - min(read) >= LONGEST_US:
                spans += spans_of(origin, events)
                exported |= {id(item.event) for item in events}
        kept = [(at_us, row) for at_us, row in self._rows if id(row[1]) not in exported]
        self._rows = [(at_us, row) for at_us, row in kept if now_us - at_us < LONGEST_US or row[1].origin in messages]
        return spans


def _id(size: int, *words: object) -> bytes:
    return hashlib.sha256("\0".join(map(str, words)).encode()).digest()[:size]


def spans_of(origin: str, events: Sequence[NodeTraceEvent]) -> list[Span]:
    """Return a message's spans, publish first: resolve, commit of each partition, deliver to each client.

    Late events make spans of their own, without another publish.
    """
    trace_id, first = _id(16, origin), _id(8, origin, "publish")
    received = next((item for item in events if item.event.stage == "received"), events[0])
    begins = min(item.at_us for item in events)
    publish = [item for item in events if item.event.stage in OF_PUBLISH]
    answered = [item.at_us for item in events if item.event.stage in ("acknowledged", "refused")]
    ends = max(answered, default=max(item.at_us for item in events))
    facts: dict[str, str | int] = {
        "messaging.system": "mqtt",
        "messaging.operation.type": "publish",
        "messaging.destination.name": received.event.topic or "",
        "messaging.client.id": received.event.client_id or "",
        "messaging.message.id": origin,
        "stratamq.node": received.node,
    }
    spans: list[Span] = []
    if any(item.event.stage in ("received", "refused") for item in events):
        spans.append(
            Span(trace_id, first, b"", "publish", begins, max(begins, ends), facts, publish, _failure(publish))
        )

    def add(
        name: str, key: object, events: Sequence[NodeTraceEvent], start_us: int, about: Mapping[str, str | int]
    ) -> None:
        end_us = max((item.at_us for item in events), default=start_us)
        start_us = min(start_us, end_us)
        span_id = _id(8, origin, name, key)
        shared = {"messaging.system": "mqtt", "messaging.message.id": origin, **about}
        spans.append(Span(trace_id, span_id, first, name, start_us, end_us, shared, events, _failure(events)))

    resolved = [item for item in events if item.event.stage in RESOLVED]
    if resolved:
        add("resolve", "", resolved, received.at_us, {"stratamq.node": resolved[0].node})
    for partition, group in _by(events, COMMITTED, lambda item: item.event.partition).items():
        before = [item for item in events if item.event.stage in ("accepted", "queued")]
        begun = [item.at_us for item in before if item.event.partition == partition]
        about = {"stratamq.node": group[0].node}
        if partition is not None:
            about["stratamq.partition"] = str(partition)
        add("commit", partition, group, min(begun, default=group[0].at_us), about)
    for client, group in _by(events, (*BEGINS, *ENDS), _copy).items():
        ended = [item for item in group if item.event.stage in ENDS]
        if ended and client is not None:
            about = {"messaging.operation.type": "deliver", "stratamq.node": ended[-1].node}
            if name := next((item.event.client_id for item in group if item.event.client_id), None):
                about["messaging.client.id"] = name
            add("deliver", client, group, min(item.at_us for item in group), about)
    return spans


def _copy(item: NodeTraceEvent) -> int | str | None:
    """Return the key of an event's copy: the session, or the client if there is none; pushes have a session only."""
    return item.event.session if item.event.session is not None else item.event.client_id


def _by(
    events: Sequence[NodeTraceEvent], stages: Sequence[str], key: Callable[[NodeTraceEvent], object]
) -> dict[object, list[NodeTraceEvent]]:
    found: dict[object, list[NodeTraceEvent]] = {}
    for item in events:
        if item.event.stage in stages:
            found.setdefault(key(item), []).append(item)
    return found


def _failure(events: Sequence[NodeTraceEvent]) -> str:
    for item in events:
        if item.event.stage in ("refused", "dropped", "expired"):
            return item.event.reason or str(item.event.stage)
    return ""
