"""Events under $SYS/cluster/events/ at one edge: of its clients, of expired sessions, of nodes."""

import json
from typing import Any

import msgspec

from edge.node.limits import EdgeLimits
from mqtt.packets import Disconnect
from tests.edge.edge_harness import Edge, Session, cluster_map
from tests.edge.session_answers import DURABLE, publishes
from wire.messages.cluster_map import ClusterMap, NodeState, PartitionEntry
from wire.messages.map_pages import map_pages
from wire.messages.sessions import SessionExpired

ON = EdgeLimits(sys_interval_s=0, events=True)
EVERYTHING = "$SYS/cluster/events/#"


def events(session: Session) -> list[tuple[str, dict[str, Any]]]:
    """Return the last levels and values of received events."""
    found = publishes(session)
    assert all(copy.qos == 0 and not copy.retain for copy in found)
    return [(copy.topic_name.rpartition("/")[2], json.loads(copy.payload)) for copy in found]


def watched(limits: EdgeLimits = ON) -> tuple[Edge, Session]:
    edge = Edge(limits)
    watcher = edge.client("watcher")
    watcher.subscribe(EVERYTHING, qos=2)
    watcher.read()
    return edge, watcher


def test_client_events_from_connect_to_disconnect() -> None:
    """Each has the same fields; the code of DISCONNECT, or null after a closed socket."""
    edge, watcher = watched()
    for properties in ({}, DURABLE):
        session = edge.client("c", properties=properties)
        session.subscribe("a/+", "b", qos=1)
        session.unsubscribe("a/+", *([] if properties else ["never"]))
        session.send(Disconnect(4, {}))
        edge.turn()
        session.drop()
        said = events(watcher)
        assert [what for what, _ in said] == ["connected", "subscribed", "subscribed", "unsubscribed", "disconnected"]
        first = {key: value for key, value in said[0][1].items() if key != "at_ms"}
        known = {"client": "c", "user": "", "listener": "plain", "address": "", "version": 5, "reason_code": 0}
        assert first == {**known, "filter": None, "qos": None}
        assert said[0][1]["at_ms"] >= 1_800_000_000_000
        assert [(value["filter"], value["qos"]) for _, value in said[1:4]] == [("a/+", 1), ("b", 1), ("a/+", None)]
        assert said[4][1]["reason_code"] == 4
    edge.client("d").drop()
    assert [value["reason_code"] for _, value in events(watcher)] == [0, None]


def test_events_are_off_by_default() -> None:
    edge, watcher = watched(EdgeLimits(sys_interval_s=0))
    edge.client("c").drop()
    edge.storage(SessionExpired(0, 1, "gone"))
    edge.turn()
    assert events(watcher) == []


def test_events_beyond_the_rate_are_counted() -> None:
    edge, watcher = watched(EdgeLimits(sys_interval_s=0, events=True, events_rate_max=3))
    edge.turn(10)
    for number in range(5):
        edge.client(str(number))
    assert len(events(watcher)) == 3
    assert edge.core.counts["dropped_events"] == 2
    edge.turn(1)
    edge.client("later")
    assert len(events(watcher)) == 1


def test_client_cannot_publish_events() -> None:
    """0x87: only nodes publish events."""
    edge, watcher = watched()
    session = edge.client("c")
    events(watcher)
    session.publish("$SYS/cluster/events/connected", b"{}", 1, 1)
    assert [packet.reason_code for packet in session.read()] == [0x87]
    assert events(watcher) == []


def test_session_expired_event_requires_the_primary() -> None:
    edge, watcher = watched()
    edge.storage(SessionExpired(0, 1, "gone", "ann"))
    edge.storage(SessionExpired(0, 1, "not from the primary"), node="s1")
    edge.turn()
    ((what, said),) = events(watcher)
    assert (what, said["client"], said["user"], said["listener"]) == ("session_expired", "gone", "ann", None)


def moved(edge: Edge, former: ClusterMap, **changes: Any) -> ClusterMap:
    """Give the edge the next map."""
    after = msgspec.structs.replace(former, epoch=former.epoch + 1, **changes)
    edge.router(*map_pages(after))
    edge.turn()
    return after


def test_node_events_follow_the_map() -> None:
    """A death, an orderly stop, a return and a promotion; the first active edge publishes them."""
    edge, watcher = watched()
    first = cluster_map()
    nodes = dict(first.nodes)
    nodes["s0"] = msgspec.structs.replace(nodes["s0"], state=NodeState.DEAD)
    nodes["e1"] = msgspec.structs.replace(nodes["e1"], state=NodeState.DRAINING)
    partitions = [PartitionEntry(2, "s1", ("s1",)), *first.partitions[1:]]
    second = moved(edge, first, nodes=nodes, partitions=partitions)
    said = [(value["node"], value["event"], value["partitions"]) for what, value in events(watcher) if what == "node"]
    assert said == [("s0", "died", None), ("s1", "promoted", 1)]
    nodes = dict(nodes)
    nodes["e1"] = msgspec.structs.replace(nodes["e1"], state=NodeState.DEAD)
    nodes["s0"] = msgspec.structs.replace(nodes["s0"], state=NodeState.ACTIVE, incarnation=2)
    moved(edge, second, nodes=nodes)
    said = [(value["node"], value["event"], value["incarnation"]) for _, value in events(watcher)]
    assert said == [("e1", "left", 1), ("s0", "joined", 2)]


def test_only_the_first_edge_publishes_node_events() -> None:
    edge, watcher = watched()
    first = cluster_map()
    nodes = {"a-first": msgspec.structs.replace(first.nodes["e1"], node="a-first"), **first.nodes}
    second = moved(edge, first, nodes=nodes)
    assert [value["node"] for _, value in events(watcher)] == ["a-first"]  # new, so e0 publishes
    nodes = dict(nodes)
    nodes["s1"] = msgspec.structs.replace(nodes["s1"], state=NodeState.DEAD)
    moved(edge, second, nodes=nodes)
    assert events(watcher) == []
