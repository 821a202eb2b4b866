"""Traces of one node: matching by kind, end of a trace, and refusals."""

from typing import Any

import pytest

from wire.messages.cluster_map import ClusterMap
from wire.messages.orders import OrderNode, TraceOrder
from wire.messages.queries import StartTrace, StopTrace
from wire.messages.running_traces import TOLD_ORIGINS_MAX, RunningTrace
from wire.queries.source import QueryRefused, RowScan
from wire.queries.tracer import TRACES_MAX, Trace, Tracer
from wire.queries.traces import NO_ORIGIN, TraceRefused, judge_of

TRIED = '{"trace":"one-more","kind":"topic","pattern":"a"}'
ORIGIN = (1, (252 << 48) | 17, 9)


class Node:
    """A tracer, its clock, and the number of mark updates."""

    def __init__(self) -> None:
        self.marked = 0
        self.us = 1_000_000
        self.desk = Tracer("e1", lambda: ClusterMap(""), self._changed)
        self.desk.utc_us = lambda: self.us

    def _changed(self) -> None:
        self.marked += 1

    def begin(self, name: str, kind: str = "topic", pattern: str = "a/#", **options: Any) -> Trace:
        return self.desk.begin(TraceOrder(name, kind, pattern, **options), 10.0)

    def told(self, name: str, column: str = "stage", role: str = "operator") -> list[Any]:
        source = self.desk.sources()["trace"]
        ask = RowScan({"trace": name}, "", frozenset(), role, 100, 0.0)
        return [source.columns[column](thing) for _, thing in source.walk(ask)]

    def names(self) -> list[Any]:
        source = self.desk.sources()["traces"]
        return [
            source.columns["trace"](thing) for _, thing in source.walk(RowScan({}, "", frozenset(), "viewer", 100, 0.0))
        ]


@pytest.mark.parametrize(
    ("kind", "pattern", "about", "not_about"),
    [
        ("client", "dev-*", "dev-1", "other"),
        ("topic", "a/+/c", "a/b/c", "a/b"),
        ("topic", "#", "a", "$SYS/x"),
        ("address", "192.0.2.0/24", "192.0.2.7", "192.0.3.7"),
        ("address", "192.0.2.7", "::ffff:192.0.2.7", "unknown"),
        ("address", "2001:db8::/32", "2001:db8::1", "192.0.2.7"),
        ("origin", "session/252-17/9", "session/252-17/9", "session/252-17/10"),
    ],
)
def test_trace_matches_by_its_kind(kind: str, pattern: str, about: str, not_about: str) -> None:
    judge = judge_of(kind, pattern)
    assert judge(about) and not judge(not_about)


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        *(
            ("client", ""),
            ("user", "x"),
            ("topic", "a/#/b"),
            ("topic", ""),
            ("address", "here"),
            ("address", "1.2.3.4/99"),
        ),
        *(("origin", "e1"), ("origin", "/1/2"), ("origin", "e1//2"), ("client", "*" * 2000)),
    ],
)
def test_trace_malformed_pattern_is_refused_in_one_line(kind: str, pattern: str) -> None:
    with pytest.raises(TraceRefused) as refused:
        judge_of(kind, pattern)
    assert "\n" not in str(refused.value)


def test_tracer_event_goes_to_matching_traces() -> None:
    """By client, topic, address and origin; a mark alone adds it to traces of clients, flagged as carried."""
    node = Node()
    for name, kind, pattern in (
        ("c", "client", "dev"),
        ("t", "topic", "a/#"),
        ("n", "address", "192.0.2.0/24"),
        ("o", "origin", "session/252-17/9"),
    ):
        node.begin(name, kind, pattern)
    node.desk.note("received", ORIGIN, "dev", "198.51.100.1", "b")
    node.desk.note("accepted", NO_ORIGIN, topic="a/b", marked=True)
    node.desk.note("written", (0, 1, 2), "other", "192.0.2.9", "c")
    assert node.told("c") == ["received", "accepted"]
    assert node.told("c", "carried") == [None, True]
    assert node.told("t") == ["accepted"]
    assert node.told("n") == ["accepted", "written"]
    assert node.told("o") == ["received"]


def test_trace_ends_at_its_time_its_events_or_by_an_order() -> None:
    """Marks are updated each time, not in the middle of a message; the events stay readable."""
    node = Node()
    by_time, by_events = node.begin("time", for_s=60), node.begin("events", events_max=2)
    stopped = node.begin("stopped")
    node.desk.note("received", topic="a")
    node.desk.note("written", topic="a")
    before = node.marked
    assert by_events.state == "events" and node.desk.next_deadline() == 0.0
    node.desk.note("acked", topic="a")
    assert node.marked == before and by_events.number == 2
    node.desk.step(11.0)
    assert node.marked == before + 1 and node.desk.next_deadline() == 70.0
    node.desk.stop("stopped", 12.0)
    node.desk.step(70.0)
    assert (by_time.state, stopped.state) == ("time", "stopped")
    assert not node.desk.running and node.desk.next_deadline() == float("inf")
    assert node.told("events") == ["received", "written"]


def test_trace_at_a_high_rate_ends() -> None:
    """A thousand events in a second, three times."""
    node = Node()
    trace = node.begin("fast", events_max=100_000)
    for second in range(3):
        node.us = (10 + second) * 1_000_000
        assert trace.state == "running"
        for _ in range(1_000):
            node.desk.note("received", topic="a")
    assert trace.state == "too_much"
    assert len(trace.events) <= 4_096


def test_tracer_refuses_a_seventeenth_running_trace() -> None:
    node = Node()
    for number in range(TRACES_MAX):
        node.begin(f"t{number}")
    with pytest.raises(TraceRefused, match="16 traces run: `trace stop` one"):
        node.begin("one-more")
    with pytest.raises(TraceRefused, match="runs already"):
        node.begin("t0", pattern="b/#")
    assert node.begin("t0").state == "running"  # the same trace
    order = OrderNode(1, "trace start", TRIED, True, "ann", "operator")
    assert "16 traces run" in node.desk.ordered(10.0, order).error, "a trial said that it would begin"
    node.desk.stop("t3", 11.0)
    node.begin("one-more")
    assert "t3" not in node.names() and len(node.names()) == TRACES_MAX
    with pytest.raises(TraceRefused, match="no trace 't3'"):
        node.desk.stop("t3", 11.0)


def test_tracer_requires_the_operator_role() -> None:
    """The lower one of the certificate's role and the message's counts."""
    node = Node()
    start = StartTrace(1, "t", "topic", "a/#", actor="ann", role="operator")
    assert "role operator" in node.desk.asked(10.0, "viewer", start).error
    start.role = "viewer"
    assert "role operator" in node.desk.asked(10.0, "admin", start).error
    start.role = "operator"
    seen = node.desk.asked(10.0, "operator", start)
    assert not seen.error and b"running" in seen.rows[0] and b"ann" in seen.rows[0]
    assert "no trace 'x'" in node.desk.asked(10.0, "operator", StopTrace(2, "x", role="operator")).error
    assert b"stopped" in node.desk.asked(10.0, "operator", StopTrace(2, "t", role="operator")).rows[0]


def test_tracer_executes_a_routers_order() -> None:
    node = Node()
    subject = '{"trace": "t", "kind": "client", "pattern": "dev"}'
    order = OrderNode(7, "trace start", subject, True, "ann", "operator")
    assert not node.desk.ordered(10.0, order).error and not node.desk.running
    order.dry_run = False
    assert not node.desk.ordered(10.0, order).error and node.desk.wants_client("dev", "")
    assert [trace.actor for trace in node.desk.running] == ["ann"]  # authorized by the router
    assert "no trace" in node.desk.ordered(10.0, OrderNode(8, "trace stop", '{"trace": "x"}')).error
    assert node.desk.ordered(10.0, OrderNode(8, "trace start", '{"trace": "x", "kind": "topic"}')).error
    assert node.desk.ordered(10.0, OrderNode(8, "trace start", "nonsense")).error
    assert not node.desk.ordered(10.0, OrderNode(9, "trace stop", '{"trace": "t"}')).error
    assert not node.desk.wants_client("dev", "")


def test_tracer_starts_a_trace_of_another_node_once() -> None:
    """Its end is kept; a trace that has ended here, runs at one node only, or conflicts by name does not start."""
    node = Node()
    order = TraceOrder("t", "client", "dev", for_s=600, everywhere=True)
    told = RunningTrace(order, 2_000, 5_000, "ann", [ORIGIN])
    node.desk.heard(10.0, told)
    node.desk.heard(11.0, told)
    (trace,) = node.desk.running
    assert (trace.until, trace.started_ms, trace.actor) == (12.0, 5_000, "ann")
    assert node.desk.wants_origin(ORIGIN) and not node.desk.wants_origin((1, 2, 3))
    node.desk.heard(11.0, RunningTrace(TraceOrder("t", "client", "x", everywhere=True), 2_000, 0, "", [(1, 2, 3)]))
    node.desk.heard(11.0, RunningTrace(TraceOrder("one", "client", "dev"), 2_000, 0, "", [(1, 2, 3)]))
    assert not node.desk.wants_origin((1, 2, 3)) and node.names() == ["t"]
    node.desk.step(12.0)
    node.desk.heard(12.5, told)
    assert not node.desk.running and not node.desk.wants_origin(ORIGIN)


def test_tracer_sends_its_traces_with_the_newest_origins() -> None:
    node = Node()
    node.begin("c", "client", "dev", for_s=60)
    node.begin("t", "topic", "#", for_s=60)
    for number in range(TOLD_ORIGINS_MAX + 5):
        node.desk.note("received", (0, 7, number), "dev", topic="a", qos=1)
        node.desk.note("received", (0, 8, number), "other", topic="a", qos=1, marked=True)
    of_client, of_topic = node.desk.to_tell(30.0)
    assert (of_client.left_ms, of_client.running.trace) == (40_000, "c") and of_topic.origins == []
    assert of_client.origins == [(0, 7, number) for number in range(5, TOLD_ORIGINS_MAX + 5)]


def test_trace_cuts_payloads_to_its_length() -> None:
    node = Node()
    node.begin("none")
    node.begin("head", payload_bytes=4)
    assert node.desk.payload_bytes == 4
    node.desk.note("received", topic="a", payload=b"payload")
    assert [node.told(name, "payload") for name in ("none", "head")] == [[None], [b"payl"]]


def test_trace_payloads_require_an_operator() -> None:
    """For starting such a trace, and for reading it through any interface."""
    node = Node()
    node.begin("t", payload_bytes=4)
    node.desk.note("received", topic="a", payload=b"payload")
    assert node.told("t", "payload", "viewer") == [None] and node.told("t", "stage", "viewer") == ["received"]
    assert node.told("t", "payload", "admin") == [b"payl"]


def test_trace_matches_long_names_whole_and_stores_them_short() -> None:
    """A filter must match the whole topic; 16 traces of long names use little memory."""
    node = Node()
    trace, other = node.begin("t", "topic", "a/+/end"), node.begin("u", "topic", "a/+")
    for number in range(20):
        node.desk.note("received", topic=node.desk.text(b"a/%d%s/end" % (number, b"x" * 60_000)))
    assert trace.number == 20 and other.number == 0
    assert max(map(len, node.told("t", "topic"))) == 256
    assert not trace.known and node.desk.text(b"short") is node.desk.text(b"short")


def test_trace_query_for_an_unknown_trace_is_refused() -> None:
    node = Node()
    with pytest.raises(QueryRefused, match="no trace 'x'"):
        node.told("x")
