"""Operators' queries at an edge: rows of clients, subscriptions, routes and windows."""

from collections.abc import Sequence
from typing import Any

import pytest

from edge.core import EdgeCore
from edge.loop.options import ConnOptions
from edge.loop.state import LINK, LoopConnection
from edge.node.limits import EdgeLimits
from edge.node.node import EdgeNode
from mqtt.packets import Puback, Pubcomp, Publish, Pubrec
from tests.edge.edge_harness import START, START_UTC, Edge, cluster_map
from tests.edge.test_broken_links import feed, frame
from wire.links.admission import OPERATORS_MAX
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.frames import HEADER, HEADER_BYTES, FrameKind
from wire.messages.hello import NodeIdentity, PeerKey, encode_hello
from wire.messages.map_pages import map_pages
from wire.messages.nodes import Heartbeat, RegisterRequest
from wire.messages.operators import Admin, AdminReply
from wire.messages.queries import Query, QueryResult
from wire.messages.query_kinds import LOOK_KINDS, columns_of, rows_of
from wire.messages.routes import Destinations, GroupDestinations, Resolve

ADMIN = PeerKey("admin:ann/1", "operator", 1)


def look(edge: Edge, what: str, key: PeerKey = ADMIN, **options: Any) -> QueryResult:
    """Return an edge's response to one query."""
    options.setdefault("role", "admin")
    edge.core.operators.take(key, Query(7, what, **options))
    edge.turn(0.01)
    (seen,) = edge.take(QueryResult) or [one for one in edge.seen if isinstance(one, QueryResult)][-1:]
    return seen


def rows(edge: Edge, what: str, **options: Any) -> list[Any]:
    seen = look(edge, what, **options)
    assert not seen.error
    return rows_of(what, seen)


def test_clients_query_returns_all_columns() -> None:
    edge = Edge()
    edge.client("first", keep_alive_s=60)
    edge.turn(5.0)
    edge.client("second", version=4, clean_start=False)
    first, second = rows(edge, "clients")
    assert (first.client_id, first.state, first.node, first.proto) == ("first", "open", "e0", "5.0")
    assert (first.listener, first.keep_alive_s, first.session, first.number) == ("plain", 60, 0, 1)
    assert first.connected_at_ms == pytest.approx(START_UTC * 1000, abs=50)
    assert (second.proto, second.clean_start, second.number) == ("3.1.1", False, 2)
    assert second.session == second.partition << 48 | 1
    assert second.connected_at_ms == pytest.approx((START_UTC + 5) * 1000, abs=50)


def test_whole_row_equals_single_columns() -> None:
    """It is built in one call, for speed."""
    edge = Edge()
    edge.client("ephemeral", properties={33: 1}).subscribe("a", qos=1)
    edge.client("stored", version=4, clean_start=False)
    edge.accept()
    publisher = edge.client("publisher")
    for number in range(3):
        publisher.publish("a", qos=1, identifier=number + 1)
    every = rows(edge, "clients")
    assert len(every) == 4 and every[0].queued == 2
    names = columns_of("clients")
    for few in (names[at : at + 3] for at in range(0, len(names), 3)):  # each queried by itself
        assert shown(rows(edge, "clients", columns=[*few]), few) == shown(every, few)
    for many in (names, names[:12], names[10:]):
        found = rows(edge, "clients", columns=[*many])
        assert shown(found, many) == shown(every, many)
        assert {name for row in found for name in names if getattr(row, name) is not None} <= {*many}


def shown(found: list[Any], names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return columns of rows; a row is as old as its iteration."""
    plain = [[getattr(row, name) for name in names] for row in found]
    return [tuple(round(one, 0) if isinstance(one, float) else one for one in row) for row in plain]


def test_pages_of_clients_return_each_once_during_changes() -> None:
    edge = Edge()
    sessions = [edge.client(f"c{n}") for n in range(30)]
    seen = look(edge, "clients", limit=10)
    sessions[3].drop()
    sessions[15].drop()
    edge.client("late")
    found = [row.client_id for row in rows_of("clients", seen)]
    while seen.after:
        edge.turn(3.0)
        seen = look(edge, "clients", limit=10, after=seen.after)
        found += [row.client_id for row in rows_of("clients", seen)]
    assert found == [f"c{n}" for n in range(30) if n != 15] + ["late"]


def test_client_row_has_window_and_queue() -> None:
    edge = Edge()
    subscriber = edge.client("s", properties={33: 2})  # Receive Maximum
    subscriber.subscribe("a/#", qos=1)
    publisher = edge.client("p")
    for number in range(5):
        publisher.publish("a/b", qos=1, identifier=number + 1)
    edge.turn(4.0)
    (row,) = rows(edge, "client", where={"client_id": "s"})
    assert (row.window, row.inflight, row.queued, row.oldest_packet) == (2, 2, 3, 1)
    assert row.oldest_s == pytest.approx(4.0, abs=0.1)
    assert row.window_full_since_ms == pytest.approx(START_UTC * 1000, abs=100)
    assert row.filters == ["a/#"]
    assert (row.fenced, row.drain, row.paused) == (False, False, [])
    assert (row.receive_maximum, row.window_max, row.may_receive) == (2, 64, None)
    (row,) = rows(edge, "client", where={"client_id": "s", "topic": "a/b", "qos": "1"})
    assert row.may_receive is True


@pytest.mark.parametrize("qos", [1, 2])
def test_client_row_has_acknowledgement_time(qos: int) -> None:
    """One packet is timed at a time, including those that waited for the window; bounds are powers of two times 64
    us.
    """
    edge = Edge()
    subscriber = edge.client("s", properties={33: 1})
    subscriber.subscribe("a", qos=qos)
    publisher = edge.client("p")
    for number in range(2):
        publisher.publish("a", qos=qos, identifier=number + 1)
    assert {row.client_id: row.rtt_p99_ms for row in rows(edge, "clients")} == {"s": None, "p": None}
    for waited_s, shown in ((0.0, 16.384), (0.9, 1048.576)):  # a query takes 10 ms here
        edge.turn(waited_s)
        first = next(packet for packet in subscriber.read() if isinstance(packet, Publish)).packet_identifier or 0
        subscriber.send(Puback(first) if qos == 1 else Pubrec(first))
        if qos == 2:
            edge.turn(20.0)
            subscriber.send(Pubcomp(first))
        assert [row.rtt_p99_ms for row in rows(edge, "clients", where={"client_id": "s"})] == [shown]


def test_subscription_row_has_its_time() -> None:
    """Of the last SUBSCRIBE; also for shared subscriptions."""
    edge = Edge()
    session = edge.client("s")
    session.subscribe("a", "$share/g/b")
    edge.turn(7.0)
    session.subscribe("c")
    since = {row.filter: row.since_ms / 1000 - START_UTC for row in rows(edge, "subscriptions")}
    assert since["a"] == since["b"] == pytest.approx(0.0, abs=0.1) and since["c"] == pytest.approx(7.0, abs=0.1)


def test_window_of_durable_session_is_null() -> None:
    """Its partition has it; the Receive Maximum is the client's own."""
    edge = Edge()
    edge.client("s", clean_start=False, properties={17: 60})
    edge.client("e", properties={33: 7})
    shown = {row.client_id: row.receive_maximum for row in rows(edge, "clients")}
    assert shown == {"s": 65_535, "e": 7}
    (row,) = rows(edge, "client", where={"client_id": "s"})
    assert row.window is None and not rows(edge, "slow", where={"by": "window"})


def test_unknown_client_is_reported() -> None:
    seen = look(Edge(), "client", where={"client_id": "nobody"})
    assert seen.error == "edge e0 has no connection of client 'nobody'"
    assert seen.exit_code == 1


def test_inflight_rows_in_both_directions() -> None:
    edge = Edge()
    edge.routes = {"t": Destinations([], [0])}
    subscriber = edge.client("s")
    subscriber.subscribe("a", qos=1)
    publisher = edge.client("p")
    publisher.publish("a", qos=1, identifier=9)
    publisher.publish("t", qos=1, identifier=10)
    edge.turn(2.0)
    (to,) = rows(edge, "inflight", where={"client_id": "s"})
    assert (to.direction, to.packet, to.state) == ("to", 1, "sent")
    (own,) = rows(edge, "inflight", where={"client_id": "p"})
    assert (own.direction, own.packet, own.qos, own.state) == ("from", 10, 1, "unfinished")
    assert own.age_s == pytest.approx(2.0, abs=0.1)


def test_subscriptions_of_ephemeral_sessions_are_listed() -> None:
    edge = Edge()
    for name in "ab":
        session = edge.client(name)
        session.subscribe(*(f"{name}/{n}" for n in range(4)), qos=1)
        session.subscribe("$share/g/x/#", qos=2)
    found = []
    after = ""
    while True:
        seen = look(edge, "subscriptions", limit=3, after=after)
        found += [(row.client_id, row.filter, row.share, row.qos) for row in rows_of("subscriptions", seen)]
        after = seen.after
        if not after:
            break
    expected = [(name, f"{name}/{n}", "", 1) for n in range(4) for name in "ab"]
    assert sorted(found) == sorted([*expected, ("a", "x/#", "g", 2), ("b", "x/#", "g", 2)])
    (row,) = rows(edge, "subscriptions", where={"client_id": "a", "filter": "a/2"})
    assert row.filter == "a/2"


def test_route_rows_have_destinations() -> None:
    edge = Edge()
    edge.routes = {"a": Destinations([], [2]), "b": Destinations()}
    session = edge.client("c")
    session.subscribe("a")
    for topic in "ab":
        session.publish(topic)
    first, second = rows(edge, "routes")
    assert (first.topic, first.local, first.partitions, first.node) == ("a", 1, [2], "e0")
    assert first.shard == cluster_map().shard_for_topic("a")
    assert (second.topic, second.local, second.partitions) == ("b", 0, [])
    assert [row.topic for row in rows(edge, "routes", where={"topic": "b*"})] == ["b"]


def test_match_rows_have_receivers_and_reasons() -> None:
    edge = Edge()
    edge.client("plain").subscribe("a/+", qos=1)
    edge.client("own").subscribe("a/b", qos=0, no_local=True)
    edge.client("small", properties={39: 20}).subscribe("#", qos=2)
    edge.client("member").subscribe("$share/g/a/b")
    edge.client("near").subscribe("a/c")
    found = {
        row.client_id or row.filter: (row.qos, row.why)
        for row in rows(edge, "matches", where={"topic": "a/b", "from": "own", "bytes": "100", "near": "1"})
    }
    assert found == {
        "plain": (1, ""),
        "own": (0, "no_local"),
        "small": (2, "size"),
        "member": (2, ""),
        "a/c": (None, "level"),
    }


def test_share_row_has_members_and_next_one() -> None:
    edge = Edge()
    for name in "abc":
        edge.client(name).subscribe("$share/g/x/#")
    (row,) = rows(edge, "shares")
    assert (row.group, row.filter, row.members, row.online, row.queued, row.who) == ("g", "x/#", 3, 3, 0, None)
    (row,) = rows(edge, "shares", where={"group": "g", "filter": "x/#"})
    assert [member.client_id for member in row.who] == ["a", "b", "c"]
    found = rows(edge, "matches", where={"topic": "x/1"})
    assert {one.share for one in found} == {"g"}, "as storage nodes name it: members of both are one group"
    turns = {one.client_id: one.turn for one in found}
    assert turns == {"a": True, "b": False, "c": False}


def test_share_row_counts_copies_and_redispatches() -> None:
    """One of two members closes without acknowledgements: its copies go to the other."""
    edge = Edge()
    edge.routes = {"x": Destinations(groups=[GroupDestinations("g/x", [("e0", 2)], [])])}
    gone, stays = (edge.client(name) for name in ("gone", "stays"))
    for member in (gone, stays):
        member.subscribe("$share/g/x", qos=1)
    publisher = edge.client("p")
    for number in range(4):
        publisher.publish("x", qos=1, identifier=number + 1)
    for packet in stays.read():
        if isinstance(packet, Publish):
            stays.send(Puback(packet.packet_identifier or 0))
    (row,) = rows(edge, "shares")
    assert (row.delivered, row.redispatched, row.queued, row.queued_most, row.skew) == (4, 0, 2, 2, 2.0)
    gone.drop()
    (row,) = rows(edge, "shares")
    assert (row.members, row.delivered, row.redispatched, row.skew) == (1, 6, 2, 1.0)


def test_slow_clients_query() -> None:
    edge = Edge()
    subscriber = edge.client("s", properties={33: 2})
    subscriber.subscribe("a", qos=1)
    publisher = edge.client("p")
    for number in range(3):
        publisher.publish("a", qos=1, identifier=number + 1)
    edge.turn(3.0)
    (row,) = rows(edge, "slow", where={"by": "window"})
    assert (row.client_id, row.value, row.unit) == ("s", 1.0, "ratio")
    (row,) = rows(edge, "slow", where={"by": "age"})
    assert row.value == pytest.approx(3.0, abs=0.1)
    assert "not by 'cats'" in look(edge, "slow", where={"by": "cats"}).error


def test_drops_query() -> None:
    edge = Edge(pending_messages_max=1)
    edge.client("s", properties={33: 1}).subscribe("a", qos=1)
    publisher = edge.client("p")
    for number in range(4):
        publisher.publish("a", qos=1, identifier=number + 1)
    drops = {row.reason: row.count for row in rows(edge, "drops")}
    assert drops["window"] == 2
    assert sum(drops.values()) == 2
    (row,) = rows(edge, "drops", where={"reason": "window"})
    assert (row.last_client_id, row.last_topic) == ("s", "a")
    assert row.last_at_ms == pytest.approx(START_UTC * 1000, abs=1_000)
    assert {one.client_id: one.dropped for one in rows(edge, "clients")} == {"s": 2, "p": 0}


def test_dropped_message_origin_is_journaled() -> None:
    """A partition gets it too, so it has an origin, which identifies it in the journal."""
    edge = Edge(pending_messages_max=1)
    edge.routes = {"a": Destinations([], [0])}
    edge.client("s", properties={33: 1}).subscribe("a", qos=1)
    publisher = edge.client("p")
    for number in range(3):
        publisher.publish("a", qos=1, identifier=number + 1)
    (row,) = rows(edge, "journal", where={"event": "drop"})
    name, incarnation, number = row.origin.split("/")
    assert (row.reason, row.client_id, name) == ("window", "s", "e0") and int(incarnation) > 0 and int(number) > 0


# --- operators' links


def operator_link(edge: Edge, name: str = "1") -> LoopConnection:
    conn = edge.core.hot.attach(-1, LINK, ConnOptions(), edge.ns)
    feed(edge, conn, encode_hello(NodeIdentity("c", name, "operator", 5)))
    return conn


def answers(edge: Edge, conn: LoopConnection) -> list[Control]:
    """Return the control messages written to a link."""
    data = edge.core.hot.take_output(conn) + edge.core.hot.take_output(conn)
    found = []
    while data:
        length, kind, *_ = HEADER.unpack_from(data)
        if kind == FrameKind.CONTROL:
            found.append(decode_control(data[HEADER_BYTES : HEADER_BYTES + length]))
        data = data[HEADER_BYTES + length :]
    return found


class PlainEdge(Edge):
    """An edge that answers operators over their links."""

    def __init__(self, limits: EdgeLimits | None = None) -> None:
        super().__init__(limits)
        node = self.core.node
        noted = node.tell

        def tell(to: str, message: Control) -> bool:
            return EdgeNode.tell(node, to, message) if to.startswith("admin:") else noted(to, message)

        node.tell = tell  # type: ignore[assignment,method-assign]


def test_operator_gets_response_over_its_link() -> None:
    edge = PlainEdge()
    conn = operator_link(edge)
    feed(edge, conn, frame(encode_control(Query(3, "drops")), 1))
    feed(edge, conn, frame(encode_control(Admin(4, "cats")), 2))
    seen, reply = answers(edge, conn)
    assert isinstance(seen, QueryResult) and seen.request == 3 and len(seen.rows) > 5
    assert isinstance(reply, AdminReply) and not reply.ok


def test_closed_operator_leaves_no_peer() -> None:
    """Earlier an edge kept a peer for each command, and rebuilt its routes for it."""
    edge = PlainEdge()
    before = len(edge.core.peers.connected())
    generation = edge.core.hot.generation
    for name in range(40):
        conn = operator_link(edge, str(name))
        assert not conn.closed
        feed(edge, conn, frame(encode_control(Query(3, "journal", wait_ms=5000)), 1))
        edge.core.hot.end_of_file(conn)
        edge.turn()
    assert len(edge.core.peers.connected()) == before
    assert all(edge.core.peers.get(f"admin:operator/{name}") is None for name in range(40))
    assert len(edge.core.operators.query_server) == 0
    assert edge.core.hot.generation == generation


def test_number_of_operators_is_bounded() -> None:
    edge = PlainEdge()
    conns = [operator_link(edge, str(name)) for name in range(OPERATORS_MAX)]
    assert not any(conn.closed for conn in conns)
    assert operator_link(edge, "late").closed
    edge.core.hot.end_of_file(conns[0])
    edge.turn()
    assert not operator_link(edge, "later").closed


def test_slow_operator_loses_its_link() -> None:
    edge = PlainEdge(EdgeLimits(sys_interval_s=0, client_id_bytes_max=2_000))
    for number in range(300):
        edge.client(f"{number}-" + "x" * 1_000)
    conn = operator_link(edge)
    for number in range(300):
        if conn.closed:
            break
        feed(edge, conn, frame(encode_control(Query(number + 1, "clients", limit=1000)), number + 1))
        edge.turn(0.1)
    assert conn.closed
    assert number * 32 * 1024 <= 5 * 1024 * 1024


@pytest.mark.parametrize(
    "message",
    [
        RegisterRequest(1, cluster_map().nodes["e1"]),
        Heartbeat("e1", 1, 1.0, 1),
        Resolve(1, 0, 1, ["t"]),
        next(iter(map_pages(cluster_map()))),
        QueryResult(1),
        AdminReply(1, ok=True),
    ],
)
def test_operator_with_forbidden_message_loses_its_link(message: Control) -> None:
    edge = PlainEdge()
    conn = operator_link(edge)
    feed(edge, conn, frame(encode_control(message), 1))
    assert conn.closed


@pytest.mark.parametrize(
    "kind", [FrameKind.RAFT, FrameKind.PUBLISH, FrameKind.PUSH, FrameKind.REPLICATE, FrameKind.CONTROLS]
)
def test_forbidden_frames_of_operators_are_refused(kind: int) -> None:
    edge = PlainEdge()
    conn = operator_link(edge)
    payload = encode_control(Query(1, "drops"))
    feed(edge, conn, HEADER.pack(len(payload), kind, 0, 6, 1) + payload)
    assert conn.closed


def test_every_query_kind_of_an_edge_has_rows() -> None:
    edge = Edge()
    core: EdgeCore = edge.core
    shown = core.operators.query_server.kinds()
    assert set(shown) <= {what for what, kind in LOOK_KINDS.items() if "edge" in kind.tiers}
    for what, source in shown.items():
        assert set(source.columns) <= set(LOOK_KINDS[what].row.__struct_fields__), what
    assert START > 0
