"""Queries of a whole simulated cluster: lists equal the clients' actions, at every tier and while nodes die."""

from typing import Any

import msgspec
import pytest

from tests.simulation.query_operator import Pages, QueryOperator, whole
from tests.simulation.scene import EPHEMERAL, Scene
from tests.simulation.sim_client import ClientOptions
from wire.messages.control import Control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.nodes import Heartbeat, RegisterRequest
from wire.messages.operators import Admin
from wire.messages.queries import Query, QueryResult, StartTrace
from wire.messages.query_kinds import LOOK_KINDS, rows_of
from wire.messages.routes import AddRoutes, RemoveRoutes, Resolve

STORED = ClientOptions(clean_start=False, session_expiry_interval_s=3600)


class Looking:
    """A scene with an operator."""

    def __init__(self, seed: int = 1, **knobs: Any) -> None:
        knobs = {"routers": 3, "storages": 3, "edges": 2, "replicas": 2, "partitions": 4, "shards": 4, **knobs}
        self.scene = Scene(seed, **knobs)
        self.scene.run(3.0)
        self.looker = QueryOperator(self.scene.cluster.world)
        self.edges = [f"e{n + 1}" for n in range(knobs["edges"])]
        self.storages = [f"s{n + 1}" for n in range(knobs["storages"])]
        self.routers = [f"r{n + 1}" for n in range(knobs["routers"])]

    def rows(self, what: str, nodes: list[str], limit: int = 7, **where: str) -> list[Any]:
        pages = [Pages(self.looker, node, what, limit, **where) for node in nodes]
        packed = whole(self.scene.until, *pages)
        assert not any(page.broken for page in pages)
        return [row for raw in packed for row in rows_of(what, QueryResult(1, [raw]))]

    def look(self, node: str, what: str, **where: str) -> QueryResult:
        answers: list[QueryResult | None] = []
        self.looker.look(node, Query(0, what, where), answers.append)
        self.scene.until(lambda: bool(answers))
        assert answers[0] is not None
        return answers[0]


def test_lists_equal_the_clients_actions() -> None:
    looking = Looking()
    scene = looking.scene
    expected = {}
    for number in range(24):
        edge = looking.edges[number % 2]
        options = STORED if number % 3 else EPHEMERAL
        client = scene.client(f"c{number}", edge, options, f"t/{number}/+", qos=1)
        expected[client.client_id] = (edge, bool(number % 3))
    scene.run(0.5)
    clients = looking.rows("clients", looking.edges)
    assert {row.client_id: (row.node, bool(row.session)) for row in clients} == expected
    assert len(clients) == len(expected)
    sessions = looking.rows("sessions", looking.storages)
    assert sorted(row.client_id for row in sessions) == sorted(name for name, (_, stored) in expected.items() if stored)
    assert {row.client_id: row.node for row in sessions} == {n: e for n, (e, stored) in expected.items() if stored}
    subscriptions = looking.rows("subscriptions", [*looking.edges, *looking.storages])
    filters = {row.client_id: (row.filter, row.durable) for row in subscriptions}
    assert filters == {name: (f"t/{list(expected).index(name)}/+", stored) for name, (_, stored) in expected.items()}
    routes = looking.rows("routes", looking.routers)
    assert {row.filter for row in routes} >= {f"t/{number}/+" for number in range(24)}


def test_queues_are_listed_in_order_with_their_ages() -> None:
    looking = Looking()
    scene = looking.scene
    subscriber = scene.client("s", "e1", STORED, "q/#", qos=1)
    name = subscriber.client_id
    publisher = scene.client("p", "e2", EPHEMERAL)
    subscriber.disconnect()
    scene.run(0.5)
    for number in range(20):
        scene.publish(publisher, "q/1", f"m{number}")
        scene.run(0.5)
    (primary,) = [s for s in looking.storages if not looking.look(s, "session", client_id=name).error]
    queue = looking.rows("queue", [primary], client_id=name)
    assert [row.seq for row in queue] == list(range(1, 21))
    ages = [row.age_s for row in queue]
    assert ages == sorted(ages, reverse=True)
    assert 0.4 < ages[0] - ages[1] < 0.7
    (session,) = [row for row in looking.rows("sessions", looking.storages) if row.client_id == name]
    assert session.queued == 20 and session.online is False
    assert session.oldest_s is not None and abs(session.oldest_s - ages[0]) < 1.0
    assert session.oldest_lower_bound is None
    replicas = looking.rows("replicas", [primary])
    oldest = max(row.queue_oldest_s for row in replicas if row.queue_oldest_s is not None)
    assert abs(oldest - ages[0]) < 1.0
    denied = looking.look(primary, "queue", client_id=name, payload="head")
    assert [row.payload[:3] for row in rows_of("queue", denied)][:2] == [b"m0|", b"m1|"]


def test_retained_messages_are_listed_and_filtered() -> None:
    looking = Looking()
    scene = looking.scene
    publisher = scene.client("p", "e1", EPHEMERAL)
    for number in range(30):
        scene.publish(publisher, f"r/{number % 3}/{number}", f"v{number}", retain=True)
    scene.run(0.5)
    found = looking.rows("retained", looking.storages, limit=4)
    assert sorted(row.topic for row in found) == sorted(f"r/{number % 3}/{number}" for number in range(30))
    found = looking.rows("retained", looking.storages, limit=4, matches="r/1/+")
    assert sorted(row.topic for row in found) == sorted(f"r/1/{number}" for number in range(30) if number % 3 == 1)
    (one,) = looking.rows("retained", looking.storages, topic="r/0/3", payload="full")
    assert one.payload.startswith(b"v3|")


def test_topic_is_resolved_at_its_owner_and_matched_at_its_destinations() -> None:
    looking = Looking()
    scene = looking.scene
    stored = scene.client("d", "e1", STORED, "x/+", qos=1)
    plain = scene.client("l", "e2", EPHEMERAL, "x/y", qos=0)
    publisher = scene.client("p", "e1", EPHEMERAL)
    scene.publish(publisher, "x/y", "1")
    scene.run(0.5)
    owner = scene.owner("x/y")
    (row,) = looking.rows("resolve", [owner], topic="x/y")
    assert row.edges == ["e2"]
    assert row.partitions == [scene.map.partition_for(stored.client_id)]
    assert (row.state, row.owner, row.cached_at) == ("serving", owner, ["e1"])
    other = next(name for name in looking.routers if name != owner)
    assert f"its owner is {owner}" in looking.look(other, "resolve", topic="x/y").error
    matches = looking.rows("matches", [*looking.edges, *looking.storages], topic="x/y")
    assert sorted((row.client_id, row.filter, row.why) for row in matches) == sorted(
        [(stored.client_id, "x/+", ""), (plain.client_id, "x/y", "")]
    )


def test_in_flight_messages_have_packet_identifier_and_topic() -> None:
    looking = Looking()
    scene = looking.scene
    subscriber = scene.client("s", "e1", STORED, "f", qos=1)
    publisher = scene.client("p", "e2", EPHEMERAL)
    scene.network.jam("s", "e1")
    for number in range(3):
        scene.publish(publisher, "f", f"m{number}")
    scene.run(1.0)
    rows = looking.rows("inflight", looking.storages, client_id=subscriber.client_id)
    assert [(row.direction, row.topic, row.state) for row in rows] == [("to", "f", "sent")] * 3
    at_edge = looking.rows("inflight", ["e1"], client_id=subscriber.client_id)
    assert [row.packet for row in at_edge] == [row.packet for row in rows]
    assert [row.seq for row in at_edge] == [row.seq for row in rows]


def test_replicas_are_listed_with_their_copies() -> None:
    looking = Looking()
    rows = looking.rows("replicas", looking.storages)
    primaries = {row.partition: row.node for row in rows if row.role == "primary"}
    assert primaries == {number: entry.primary for number, entry in enumerate(looking.scene.map.partitions)}
    assert all(len(row.in_sync) == 2 for row in rows)
    assert sum(row.role == "backup" for row in rows) == 4


def test_lists_continue_while_a_storage_node_dies() -> None:
    """The interrupted node is distinguished from nodes with a complete list; the others' lists are complete."""
    looking = Looking()
    scene = looking.scene
    names = {scene.client(f"c{n}", "e1", STORED).client_id for n in range(30)}
    pages = [Pages(looking.looker, node, "sessions", 2) for node in looking.storages]
    scene.kill("s2")
    scene.until(lambda: all(page.done for page in pages), 30)
    broken = [page for page in pages if page.broken or page.error]
    assert len(broken) <= 1
    scene.run(8.0)
    sessions = looking.rows("sessions", ["s1", "s3"])
    assert {row.client_id for row in sessions} == names
    assert len(sessions) == len(names)


@pytest.mark.parametrize(("node", "what"), [("e1", "drops"), ("s1", "drops"), ("r1", "routes")])
def test_operator_link_is_closed_for_other_messages(node: str, what: str) -> None:
    """A registration, a heartbeat, a resolution, a route and a frame of Raft, replication or messages end it."""
    looking = Looking()
    looker, scene = looking.looker, looking.scene
    epoch, entry = scene.map.epoch, scene.map.nodes["e1"]
    controls: list[Control] = [
        RegisterRequest(1, entry),
        Heartbeat("e1", entry.incarnation, 1.0, 1),
        Resolve(1, 0, 1, ["t"]),
        AddRoutes(1, 0, 1, -1, entry.incarnation, 1, []),
        RemoveRoutes(0, 1, -1, entry.incarnation, 1, []),
        QueryResult(1),
    ]
    frames = [(FrameKind.CONTROL, encode_control(message)) for message in controls]
    kinds = FrameKind.RAFT, FrameKind.REPLICATE, FrameKind.PUBLISH, FrameKind.PUSH, FrameKind.CONTROLS
    for kind, payload in [*frames, *((kind, frames[1][1]) for kind in kinds)]:
        assert not looking.look(node, what).error and looker.is_linked(node)
        looker.send(node, kind, payload)
        scene.until(lambda: not looker.is_linked(node), 2.0)
    assert scene.map.nodes["e1"].alive and scene.map.epoch == epoch


def test_nodes_show_the_kinds_that_they_answer() -> None:
    looking = Looking()
    nodes: dict[str, Any] = dict(looking.scene.cluster.nodes)
    shown = {
        "edge": nodes["e1"].core.operators.query_server.kinds(),
        "storage": nodes["s1"].core.operators.query_server.kinds(),
        "router": nodes["r1"].core.looks.kinds(),
    }
    for tier, sources in shown.items():
        for what, source in sources.items():
            assert tier in LOOK_KINDS[what].tiers, (tier, what)
            assert set(source.columns) <= set(LOOK_KINDS[what].row.__struct_fields__), (tier, what)
    assert msgspec.structs.fields(LOOK_KINDS["clients"].row)


def test_journals_record_the_events_of_a_session() -> None:
    """A fired will, the end of the session, and dropped oldest queue entries, at its primary."""
    looking = Looking()
    scene = looking.scene
    stored = ClientOptions(clean_start=False, session_expiry_interval_s=2)
    subscriber = scene.client("s", "e1", stored, "j", qos=1)
    name = subscriber.client_id
    subscriber.disconnect()
    scene.run(4.0)
    found = looking.rows("journal", looking.storages, client_id=name)
    assert [(row.event, row.reason) for row in found] == [("session_end", "expired")]
    publisher = scene.client("p", "e2", EPHEMERAL)
    scene.publish(publisher, "keep", "v", retain=True)
    scene.publish(publisher, "keep", "", retain=True)
    scene.run(0.5)
    found = looking.rows("journal", looking.storages, topic="keep")
    assert [(row.event, row.reason) for row in found] == [("purge", "retained")]


def test_trace_continues_at_a_new_primary() -> None:
    """Entries queued by its predecessor are pushed and acknowledged, each with its origin."""
    looking = Looking()
    scene = looking.scene
    subscriber = scene.client("s", "e1", STORED, "n/#", qos=1)
    publisher = scene.client("p", "e2", EPHEMERAL)
    subscriber.disconnect()
    scene.run(0.5)
    for node in [*looking.edges, *looking.storages]:
        looking.looker.tell(node, StartTrace(1, "t", "topic", "n/+", role="admin"))
    scene.run(0.5)
    for number in range(3):
        scene.publish(publisher, "n/1", f"m{number}")
    (first,) = [s for s in looking.storages if not looking.look(s, "session", client_id=subscriber.client_id).error]
    rows = looking.rows("trace", [first], trace="t")
    origins = [row.origin for row in rows if row.stage == "queued"]
    assert len(set(origins)) == 3 and "pushed" not in {row.stage for row in rows}
    scene.kill(first)
    scene.until(lambda: scene.map.partitions[scene.map.partition_for(subscriber.client_id)].primary not in ("", first))
    scene.connect(subscriber, "e1", 30.0)
    second = scene.map.partitions[scene.map.partition_for(subscriber.client_id)].primary

    def stages(stage: str) -> list[str | None]:
        return [row.origin for row in looking.rows("trace", [second], trace="t") if row.stage == stage]

    scene.until(lambda: len(stages("acked")) == 3, 30.0)
    assert stages("pushed") == origins == stages("acked")
    (trace,) = looking.rows("traces", [second], trace="t")
    assert trace.state == "running"


def test_trace_of_a_publisher_continues_at_nodes_that_join() -> None:
    """A new primary learns the client's messages; a node that starts meanwhile gets the trace, and its end."""
    looking = Looking()
    scene = looking.scene
    subscriber = scene.client("s", "e1", STORED, "n/#", qos=1)
    publisher, other = scene.client("p", "e2", EPHEMERAL), scene.client("o", "e2", EPHEMERAL)
    subscriber.disconnect()
    scene.run(0.5)
    arguments = {"trace": "t", "kind": "client", "pattern": publisher.client_id, "for_s": 900}
    for router in looking.routers:
        looking.looker.tell(router, Admin(1, "trace start", arguments))
    scene.run(0.5)
    for number in range(3):
        scene.publish(publisher, "n/1", f"m{number}")
        scene.publish(other, "n/1", f"o{number}")
    origins = [row.origin for row in looking.rows("trace", ["e2"], trace="t") if row.stage == "received"]
    assert len(set(origins)) == 3
    (first,) = [s for s in looking.storages if not looking.look(s, "session", client_id=subscriber.client_id).error]
    (begun,) = looking.rows("traces", [first], trace="t")
    scene.kill(first)
    number = scene.map.partition_for(subscriber.client_id)
    scene.until(lambda: scene.map.partitions[number].primary not in ("", first))
    scene.connect(subscriber, "e1", 30.0)
    second = scene.map.partitions[number].primary

    def stages(stage: str) -> list[str | None]:
        return [row.origin for row in looking.rows("trace", [second], trace="t") if row.stage == stage]

    scene.until(lambda: len(stages("acked")) == 3, 30.0)
    assert stages("pushed") == origins == stages("acked")
    scene.start(first)
    scene.until(lambda: bool(looking.rows("traces", [first], trace="t")), 30.0)
    (again,) = looking.rows("traces", [first], trace="t")
    assert (again.state, again.until_ms // 60_000) == ("running", begun.until_ms // 60_000)
    assert abs(again.until_ms - begun.until_ms) < 1_000
