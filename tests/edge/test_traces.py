"""Traces at an edge: marks on connections and Routes, permissions of operators, and events."""

from typing import Any

import msgspec

from tests.edge.edge_harness import Edge, cluster_map
from tests.edge.test_queries import ADMIN, rows
from wire.messages.hello import PeerKey
from wire.messages.map_pages import map_pages
from wire.messages.orders import NodeOrdered, OrderNode
from wire.messages.queries import QueryResult, StartTrace, StopTrace
from wire.messages.routes import Destinations
from wire.messages.running_traces import RunningTrace

VIEWER = PeerKey("viewer:ann/1", "operator", 1)


def say(edge: Edge, message: StartTrace | StopTrace, key: PeerKey = ADMIN) -> QueryResult:
    edge.core.operators.take(key, message)
    edge.turn(0.01)
    seen: QueryResult = [*(edge.take(QueryResult) or [one for one in edge.seen if isinstance(one, QueryResult)])][-1]
    return seen


def begin(edge: Edge, name: str, kind: str, pattern: str, **options: Any) -> None:
    seen = say(edge, StartTrace(1, name, kind, pattern, role="operator", **options))
    assert not seen.error


def told(edge: Edge, name: str) -> list[Any]:
    return rows(edge, "trace", where={"trace": name})


def test_topic_with_cached_route_is_marked() -> None:
    """The mark is removed at the end of the trace."""
    edge = Edge()
    subscriber, publisher = edge.client("s"), edge.client("p")
    subscriber.subscribe("a/#", qos=1)
    publisher.publish("a/b", qos=1, identifier=1)
    begin(edge, "t", "topic", "a/+")
    publisher.publish("a/b", qos=1, identifier=2)
    publisher.publish("a", qos=1, identifier=3)
    assert not edge.core.hot.routes[b"a"].traced
    found = [(row.stage, row.client_id, row.packet, row.node) for row in told(edge, "t")]
    assert found == [("received", "p", 2, "e0"), ("written", "s", 2, "e0"), ("acknowledged", "p", 2, "e0")]
    assert not say(edge, StopTrace(2, "t", role="operator")).error
    publisher.publish("a/b", qos=1, identifier=4)
    assert len(told(edge, "t")) == 3
    assert edge.core.hot.trace is None


def test_connections_are_marked_now_and_on_connect() -> None:
    """A later client has events from its CONNACK on; others have none."""
    edge = Edge()
    first, other = edge.client("dev-1"), edge.client("other")
    begin(edge, "t", "client", "dev-*")
    second = edge.client("dev-2")
    other.subscribe("x")
    second.subscribe("in", "too")
    first.publish("x")
    other.publish("in")
    second.drop()
    edge.turn(1.0)
    found = [(row.stage, row.client_id) for row in told(edge, "t") if not row.carried]
    assert found == [
        ("connected", "dev-2"),
        ("subscribed", "dev-2"),
        ("received", "dev-1"),
        ("written", "dev-2"),
        ("disconnected", "dev-2"),
    ]
    assert [(row.stage, row.client_id) for row in told(edge, "t") if row.carried] == [("written", "other")]


def test_trace_expires_and_removes_its_marks() -> None:
    edge = Edge()
    publisher = edge.client("p")
    begin(edge, "t", "client", "p", for_s=5)
    edge.turn(1.0)
    assert publisher.client.conn.traced
    edge.turn(6.0)
    edge.turn(0.1)
    assert not publisher.client.conn.traced
    (row,) = rows(edge, "traces")
    assert (row.trace, row.state, row.node) == ("t", "time", "e0")


def test_forwarded_event_names_destinations() -> None:
    edge = Edge()
    edge.routes = {"a": Destinations([], [2])}
    publisher = edge.client("p")
    begin(edge, "t", "topic", "a")
    publisher.publish("a", qos=1, identifier=1)
    (forwarded,) = [row for row in told(edge, "t") if row.stage == "forwarded"]
    assert forwarded.detail == "partitions 2"


def test_retained_message_is_traced_once() -> None:
    """It is sent to its retained partition first, then to others."""
    edge = Edge()
    edge.routes = {"a": Destinations([], [2])}
    publisher = edge.client("p")
    begin(edge, "t", "topic", "a")
    publisher.publish("a", qos=1, identifier=1, retain=True)
    edge.turn(0.5)
    found = [row.stage for row in told(edge, "t")]
    assert found.count("received") == 1 and found[:2] == ["received", "forwarded"]


def test_viewers_and_unknown_names_are_refused() -> None:
    edge = Edge()
    start = StartTrace(1, "t", "topic", "a", role="operator")
    assert "role operator" in say(edge, start, VIEWER).error
    assert "wants a pattern" in say(edge, StartTrace(1, "t", "topic", "", role="operator")).error
    assert "no trace 't'" in say(edge, StopTrace(1, "t", role="operator")).error
    assert rows(edge, "traces") == []


def test_router_order_starts_a_trace() -> None:
    edge = Edge()
    order = OrderNode(9, "trace start", '{"trace": "t", "kind": "topic", "pattern": "a"}', False, "ann", "operator")
    edge.router(order)
    (answer,) = edge.take(NodeOrdered)
    assert (answer.request, answer.error) == (9, "")
    (row,) = rows(edge, "traces")
    assert (row.kind, row.pattern, row.state) == ("topic", "a", "running")


def test_new_nodes_and_primaries_get_running_traces() -> None:
    """Once for each such node: the trace with its remaining time, and its client's messages."""
    edge = Edge()
    edge.held.add(RunningTrace)
    order = '{"trace": "t", "kind": "client", "pattern": "p", "for_s": 60, "everywhere": true}'
    edge.router(OrderNode(9, "trace start", order, False, "ann", "operator"))
    edge.turn(10.0)
    publisher, other = edge.client("p"), edge.client("other")
    edge.routes = {"a": Destinations([], [2])}
    publisher.publish("a", qos=1, identifier=1)
    publisher.publish("a", qos=0)
    other.publish("a", qos=1, identifier=1)
    edge.router(*map_pages(cluster_map(2)))
    edge.turn()
    assert edge.take(RunningTrace) == []
    later = cluster_map(3, primary="s1", partition_epoch=2)
    later.nodes["e1"] = msgspec.structs.replace(later.nodes["e1"], incarnation=2)
    edge.router(*map_pages(later))
    edge.turn()
    told = [(node, message) for node, message in edge.core.told if isinstance(message, RunningTrace)]
    assert [node for node, _ in told] == ["e1", "s1"]
    message = told[0][1]
    assert (message.running.trace, message.running.everywhere, message.actor) == ("t", True, "ann")
    assert 49_000 < message.left_ms <= 50_000
    (received,) = [row for row in rows_of_trace(edge) if row.qos == 1 and row.client_id == "p"]
    assert [f"e0/1/{origin[2]}" for origin in message.origins] == [received.origin]
    edge.take(RunningTrace)
    edge.turn(1.0)
    assert edge.take(RunningTrace) == []


def rows_of_trace(edge: Edge) -> list[Any]:
    return [row for row in told(edge, "t") if row.stage == "received"]
