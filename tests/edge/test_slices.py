"""Expensive client requests keep iterations short: they run in slices, or on demand.

Bounds are of this thread's processor time, above the measured values (2 to 4 ms at full size) for slower machines. The
full sizes are slow tests.
"""

from collections.abc import Iterator
from functools import partial

import msgspec
import pytest

from edge.node.slices import Slices
from edge.subscriptions.packet_bounds import count_filters
from mqtt.codec import encode_packet
from mqtt.packets import Disconnect, Publish, Suback, Unsuback, Unsubscribe
from tests.edge import edge_harness
from tests.edge.turns import TimedEdge, subscribe
from tests.memory import without_collector
from tests.turn_time import assert_within, timed
from wire.messages.cluster_map import ClusterMap, NodeState, ShardEntry
from wire.messages.map_pages import map_pages
from wire.messages.routes import AddRoutes, Destinations, Invalidate, Invalidated, RemoveRoutes, Resolve, RoutesAdded

TURN_MS = 10.0
SIZES = [pytest.param(2_000, 200, id="small"), pytest.param(65_536, 1_000, id="full", marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def no_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As many shards as in a default cluster; nodes freeze their objects, so the collector rarely runs."""
    monkeypatch.setattr(edge_harness, "SHARDS", 64)
    with without_collector():
        yield


def topics(count: int) -> list[str]:
    return [f"r{number % 7}/d{number}/v{number}" for number in range(count)]


@pytest.mark.parametrize(("cached", "many"), SIZES)
@timed
def test_subscribe_and_unsubscribe_of_many_wildcards(cached: int, many: int) -> None:
    edge = TimedEdge()
    edge.cache(topics(cached))
    session = edge.client("c")
    filters = [f"+/+/nothing{number}" for number in range(1_000)]
    edge.worst_ms()
    edge.step(edge.feed(session, subscribe(filters)))
    assert edge.settle() > 20
    assert_within("SUBSCRIBE", edge.worst_ms(), TURN_MS)
    (suback,) = session.read()
    assert isinstance(suback, Suback) and suback.reason_codes == [0] * 1_000
    assert len(edge.core.routes.local) == 1_000
    edge.step(edge.feed(session, Unsubscribe(2, filters, {})))
    edge.settle()
    assert_within("UNSUBSCRIBE", edge.worst_ms(), TURN_MS)
    (unsuback,) = session.read()
    assert isinstance(unsuback, Unsuback) and unsuback.reason_codes == [0] * 1_000
    assert len(edge.core.routes.local) == len(edge.core.registrar) == 0
    del many


@pytest.mark.parametrize(("cached", "many"), SIZES)
@timed
def test_wildcard_subscribers_closing_together(cached: int, many: int) -> None:
    """As after a failed switch; the remaining clients are served meanwhile."""
    edge = TimedEdge()
    edge.cache(topics(cached))
    leaving = [edge.client(f"leaving-{number}") for number in range(many)]
    for session in leaving:
        edge.step(edge.feed(session, subscribe(["#"])))
    stays, publisher = edge.client("stays"), edge.client("p")
    stays.subscribe("r1/#", qos=0)
    stays.read()
    edge.settle()
    edge.worst_ms()
    # The bytes of the copies are not measured: one message, with a Route to all of them.
    edge.step(edge.feed(publisher, Publish("r1/d1/v1", b"before", properties={})))
    route = edge.core.hot.route(b"r1/d1/v1")
    assert route is not None and len(route.subs) == many + 1
    edge.worst_ms()
    hot = edge.core.hot

    def all_end() -> None:
        for session in leaving:
            hot.end_of_file(session.client.conn)

    edge.step(all_end)
    edge.step(edge.feed(publisher, Publish("r1/d1/v1", b"meanwhile", properties={})))
    assert edge.settle() > 3
    assert_within("they leave", edge.worst_ms(), TURN_MS)
    assert [packet.payload for packet in stays.read() if isinstance(packet, Publish)] == [b"before", b"meanwhile"]
    assert len(edge.core.routes.local) == 1
    route = hot.route(b"r1/d1/v1")
    assert route is not None and len(route.subs) == 1


@pytest.mark.parametrize(("cached", "many"), SIZES)
@timed
def test_invalidation_of_many_filters_applies_before_its_acknowledgement(cached: int, many: int) -> None:
    """No scan: each topic is checked at its next use, and a sweep finds the rest."""
    edge = TimedEdge()
    names = topics(cached)
    edge.cache(names)
    edge.worst_ms()
    edge.held = {Invalidated}
    filters = [f"+/+/nothing{number}" for number in range(998)] + ["+/d1/#", names[2]]
    edge.step(lambda: edge.router(Invalidate(7, 0, 1, filters)))
    assert not edge.take(Invalidated), "said before its last filter was taken"
    edge.settle_alone()
    assert [answer.number for answer in edge.take(Invalidated)] == [7]
    assert_within("the order", edge.worst_ms(), TURN_MS)
    edge.held = {Resolve}
    edge.need(names[:4])
    edge.step()
    assert sorted(topic for order in edge.take(Resolve) for topic in order.topics) == sorted(names[1:3])
    while edge.core.cache.next_deadline() < float("inf"):
        edge.step()
    assert_within("the sweep", edge.worst_ms(), TURN_MS)
    assert len(edge.core.cache) == cached - 2
    del many


@pytest.mark.parametrize("when", ["at once", "after it", "after the sweep"])
def test_response_crossing_an_invalidation_is_void(when: str) -> None:
    """Requested before the invalidation: it is requested again, even after a sweep removed the filters."""
    edge = TimedEdge()
    edge.cache(topics(10))
    edge.held = {Resolve}
    got: list[object] = []
    edge.need(["crossing"], got.append)
    edge.step()
    (asked,) = edge.take(Resolve)
    answer = edge.reply(asked)
    assert answer is not None
    order = Invalidate(1, 0, 1, [f"f{number}/+" for number in range(1_000)] + ["+"])
    edge.step(lambda: edge.router(order))
    if when != "at once":
        edge.settle_alone()
    if when == "after the sweep":
        while edge.core.cache.next_deadline() < float("inf"):
            edge.step()
    edge.step(lambda: edge.router(answer))
    for _ in range(100):
        edge.step()
    assert not got
    assert [order.topics for order in edge.take(Resolve)] == [["crossing"]]


@timed
def test_responses_of_thousands_of_topics() -> None:
    """Requests of a few hundred, applied a few at a time."""
    edge = TimedEdge()
    edge.worst_ms()
    names = topics(5_000)
    edge.cache(names)
    assert_within("5 000 topics", edge.worst_ms(), TURN_MS)
    assert len(edge.core.cache) == 5_000


@timed
def test_new_owner_of_all_shards_costs_one_request_each() -> None:
    """Responses of former owners are discarded unread; topics are requested on use."""
    edge = TimedEdge()
    names = topics(5_000)
    edge.cache(names)
    moved: ClusterMap = edge_harness.cluster_map(2)
    moved.shards = [ShardEntry(2, "r0") for _ in moved.shards]
    edge.worst_ms()
    edge.step(lambda: edge.router(*map_pages(moved)))
    edge.settle()
    assert_within("a new owner", edge.worst_ms(), 3 * TURN_MS)  # the map itself, and the edge's own filters
    edge.held = {Resolve}
    edge.need(names[:1])
    edge.step()
    assert [order.topics for order in edge.take(Resolve) if order.topics] == [[names[0]]]


def test_recurring_filter_is_kept_for_a_while() -> None:
    """Each new route would invalidate all edges' caches: from the second time on its removal is delayed."""
    edge = TimedEdge()
    session = edge.client("c")
    told = []
    for _ in range(50):
        session.subscribe("#", qos=0)
        session.unsubscribe("#")
        assert [type(packet) for packet in session.read()] == [Suback, Unsuback]
        told.append(sum(isinstance(message, AddRoutes) for message in edge.seen))
    assert told[0] > 0 and told[1] == told[-1]
    route = edge.core.hot.route(b"t")
    assert route is None or not route.subs
    edge.seen.clear()
    edge.turn(0.1)
    for _ in range(300):
        edge.turn(0.05)
    assert sum(isinstance(message, RemoveRoutes) for message in edge.seen) == 64
    assert len(edge.core.registrar) == 0


def test_topics_hit_during_continuous_invalidations() -> None:
    """1 000 invalidations of all topics a second: each is acknowledged within 0.2 s, and most messages find their
    Route.
    """
    edge = TimedEdge()
    edge.cache(["t"])
    hits = 0
    waiting: dict[int, float] = {}
    longest = 0.0
    for number in range(2_000):
        waiting[number] = edge.now
        edge.step(partial(edge.router, Invalidate(number, 0, 1, ["#"])))
        for answer in edge.take(Invalidated):
            longest = max(longest, edge.now - waiting.pop(answer.number))
        if number >= 1_000 and number % 10 == 0:
            hits += edge.core.cache.answer("t") is not None
            edge.cache(["t"])
    assert longest < 0.2
    assert hits > 60
    assert edge.core.cache.wide_delayed > 0


def test_invalidations_of_one_router_are_bounded() -> None:
    """A compromised router cannot fill an edge, and other routers' invalidations are applied."""
    edge = TimedEdge()
    order = Invalidate(1, 0, 1, ["x" * 6_000] * 1_000)  # more than one iteration applies
    taken = [edge.core.cache.invalidate("thief", order, edge.now) for _ in range(100)]
    assert taken == sorted(taken, reverse=True) and 1 < sum(taken) < 10
    assert edge.core.cache.invalidate("r1", Invalidate(2, 0, 1, ["y"]), edge.now)
    edge.settle()
    assert edge.core.cache.invalidate("thief", order, edge.now), "what is carried out makes room"


@timed
def test_packets_of_one_client_leave_time_for_others() -> None:
    """A repeated SUBSCRIBE needs no other node: without slices all would run at once."""
    edge = TimedEdge()
    greedy, other = edge.client("greedy"), edge.client("other")
    greedy.subscribe("a", qos=0)
    greedy.read()
    data = encode_packet(subscribe(["a"]), 5) * 1_000
    edge.worst_ms()
    edge.step(lambda: edge.core.hot.feed(greedy.client.conn, data))
    edge.step(edge.feed(other, subscribe(["b"])))
    edge.settle()
    assert_within("1 000 packets", edge.worst_ms(), TURN_MS)
    assert [packet.reason_codes for packet in other.read()] == [[0]]
    assert len(greedy.read()) == 1_000


def test_packet_with_far_too_many_filters_closes_its_connection() -> None:
    edge = TimedEdge()
    session = edge.client("c")
    filters = [f"{number}" for number in range(2_001)]
    session.send(subscribe(filters))
    (disconnect,) = session.read()
    assert isinstance(disconnect, Disconnect) and disconnect.reason_code == 0x97
    assert edge.core.counts["filters_too_many"] == 1
    session = edge.client("d")
    session.send(subscribe(filters[:2_000]))
    edge.settle()
    (suback,) = session.read()
    assert suback.reason_codes == [0] * 1_000 + [0x97] * 1_000


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("count", [1, 5, 300])
def test_filters_are_counted_without_decoding(version: int, count: int) -> None:
    packet = encode_packet(subscribe([f"a/{number}" for number in range(count)]), version)
    at = 2 if count < 10 else 3
    assert count_filters(packet[at:], version, 1, 1_000) == count
    assert count_filters(packet[at:], version, 1, 3) == min(count, 4)
    for cut in range(at, min(len(packet), 200)):
        count_filters(packet[at:cut], version, 1, 10)


def test_close_during_subscribe_leaves_no_state() -> None:
    edge = TimedEdge()
    session = edge.client("c")
    edge.held = {AddRoutes}
    edge.step(edge.feed(session, subscribe([f"a{number}/+" for number in range(500)])))
    while not len(edge.core.routes.local):
        edge.step()
    assert 0 < len(edge.core.routes.local) < 500
    edge.step(lambda: edge.core.hot.end_of_file(session.client.conn))
    edge.settle_alone()
    assert len(edge.core.routes.local) == len(edge.core.registrar) == 0
    assert len(edge.core.subscribing) == 0
    for order in edge.take(AddRoutes):
        edge.router(RoutesAdded(order.request, order.shard, order.shard_epoch, order.sender_epoch))
    assert not edge.core.registrar.waits


def test_long_job_does_not_delay_short_ones() -> None:
    done = []

    def job(name: str, steps: int) -> Iterator[int]:
        for _ in range(steps):
            yield 1
        done.append(name)

    slices = Slices(10)
    slices.add(job("long", 100))
    slices.next_turn()
    slices.add(job("short", 2))
    slices.next_turn()
    assert done == ["short"]
    ordered = Slices(10, in_order=True)
    ordered.add(job("first", 12))
    ordered.add(job("second", 1))
    assert not len(done[1:])
    ordered.next_turn()
    assert done[1:] == ["first", "second"]
    assert len(slices) == 1 and not len(ordered)


def test_destinations_are_resolved_again_after_peer_changes() -> None:
    """Routes name peers; those of a retired edge are removed at their next use."""
    edge = TimedEdge()
    edge.cache(["t"], Destinations(edges=["e1"]))
    route = edge.core.hot.route(b"t")
    assert route is not None and len(route.edges) == 1
    without: ClusterMap = edge_harness.cluster_map(2)
    without.nodes["e1"] = msgspec.structs.replace(without.nodes["e1"], state=NodeState.DEAD)
    assert edge.core.peers.retire_dead(without) == ["e1"]
    edge.core.routes.peers_changed()
    route = edge.core.hot.route(b"t")
    assert route is not None and not route.edges
