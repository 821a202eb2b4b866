"""Routes share equal objects, the route cache has a limit in bytes, and shared groups rotate fairly."""

import gc
from collections import Counter
from pathlib import Path

import pytest

from edge.loop.state import Remote
from edge.node.limits import EdgeLimits
from edge.routes.shared_groups import HERE, SharedGroups
from mqtt.packets import Publish
from tests.edge.turns import TimedEdge, subscribe
from wire.messages.routes import Destinations, GroupDestinations, Invalidate

MIB = 1024 * 1024
SIZES = [pytest.param(1_000, 200, id="small"), pytest.param(65_536, 1_000, id="full", marks=pytest.mark.slow)]


def names(count: int) -> list[str]:
    return [f"plant/{number % 97}/device/{number}" for number in range(count)]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def routes(edge: TimedEdge, topics: list[str]) -> list[object]:
    found = [edge.core.hot.route(name.encode()) for name in topics]
    assert None not in found
    return list(found)


@pytest.mark.parametrize(("cached", "many"), SIZES)
def test_subscribers_of_all_topics_share_one_tuple(cached: int, many: int) -> None:
    """80 bytes for each topic and subscriber would be 5 GiB."""
    edge = TimedEdge()
    for number in range(many):
        edge.step(edge.feed(edge.client(f"c{number}"), subscribe(["#"])))
    edge.settle()
    gc.collect()
    before = resident_bytes()
    edge.cache(names(cached))
    found = routes(edge, names(cached))
    assert len({id(route.subs) for route in found}) == 1  # type: ignore[attr-defined]
    assert resident_bytes() - before < 256 * MIB
    assert edge.core.routes.shared_bytes.bytes < 64 * 1024


@pytest.mark.parametrize(("cached", "many"), SIZES)
def test_groups_of_all_topics_share_one_object_each(cached: int, many: int) -> None:
    """A group with its table for each topic would be 0.9 MB per topic."""
    edge = TimedEdge()
    groups = [GroupDestinations(f"g{number}/#", [("e0", 1), ("e1", 3)], [(1, 1)]) for number in range(many)]
    gc.collect()
    before = resident_bytes()
    edge.cache(names(cached), Destinations(groups=groups))
    found = routes(edge, names(cached))
    assert len({id(route.groups) for route in found}) == 1  # type: ignore[attr-defined]
    assert len(found[0].groups) == many  # type: ignore[attr-defined]
    assert resident_bytes() - before < 256 * MIB


def test_unshared_bytes_are_counted_and_oldest_topics_evicted() -> None:
    """Each topic has one subscriber in addition to 300 of all topics: its own tuple."""
    edge = TimedEdge(EdgeLimits(sys_interval_s=0, routes_bytes_max=MIB, filters_per_session_max=2_000))
    for number in range(300):
        edge.step(edge.feed(edge.client(f"c{number}"), subscribe(["#"])))
    topics = names(1_000)
    edge.step(edge.feed(edge.client("own"), subscribe(topics)))
    edge.settle()
    edge.cache(topics)
    cached = len(edge.core.cache)
    assert 200 < cached < 400
    assert edge.core.cache.bytes + edge.core.routes.shared_bytes.bytes < MIB + 8_192
    assert edge.core.hot.route(topics[-1].encode()) is not None
    assert edge.core.hot.route(topics[0].encode()) is None
    publisher = edge.client("p")
    publisher.publish(topics[0], b"x")  # requested again
    assert edge.core.hot.route(topics[0].encode()) is not None


def test_byte_count_decreases_with_the_last_route() -> None:
    edge = TimedEdge()
    one = edge.client("one")
    one.subscribe("#", "plant/#", qos=0)
    edge.cache(names(100), Destinations(groups=[GroupDestinations("g/#", [("e1", 1)], [])]))
    assert edge.core.routes.shared_bytes.bytes > 0
    one.drop()
    edge.settle()
    while edge.core.cache.next_deadline() < float("inf"):  # the sweep renews unused Routes
        edge.step()
    edge.step(lambda: edge.router(Invalidate(1, 0, 1, ["#"])))
    assert [name for name in names(100) if edge.core.cache.answer(name) is not None] == []
    assert edge.core.routes.shared_bytes.bytes == edge.core.cache.bytes == 0
    assert len(edge.core.routes.answers) == len(edge.core.routes.answers.groups) == 0


def test_route_is_updated_with_overlapping_subscriptions() -> None:
    """Topics that the same filters match share merged subscribers, until one of these filters changes."""
    edge = TimedEdge()
    both, wide = edge.client("both"), edge.client("wide")
    wide.subscribe("a/#", qos=0)
    both.subscribe("a/#", "a/+", qos=0)
    both.subscribe("a/+", qos=1)
    edge.cache(["a/1", "a/2", "a/1/2"])
    one, two, deep = routes(edge, ["a/1", "a/2", "a/1/2"])
    assert one.subs is two.subs and len(one.subs) == len(deep.subs) == 2  # type: ignore[attr-defined]
    assert sorted(sub.qos for sub in one.subs) == [0, 1]  # type: ignore[attr-defined]
    both.unsubscribe("a/+")
    one, two, deep = routes(edge, ["a/1", "a/2", "a/1/2"])
    assert one.subs is two.subs is deep.subs and len(one.subs) == 2  # type: ignore[attr-defined]
    both.drop()
    (one,) = routes(edge, ["a/1"])
    assert len(one.subs) == 1  # type: ignore[attr-defined]
    for session in (both, wide):
        session.read()
    edge.client("p").publish("a/1", b"x")
    assert [packet.payload for packet in wide.read() if isinstance(packet, Publish)] == [b"x"]


def test_group_rotation_continues_over_topics_and_member_changes() -> None:
    """By weight; a change of its members does not restart the rotation."""
    groups = SharedGroups("e0", False, lambda _: None)
    group = groups.get(GroupDestinations("g/#", [("e0", 2)], [(1, 1), (2, 1)]))
    assert groups.get(GroupDestinations("g/#", [("e0", 2)], [(1, 1), (2, 1)])) is group
    assert groups.get(GroupDestinations("h/#", [("e0", 2)], [(1, 1), (2, 1)])) is not group
    given = Counter(_place(group.next(b"%d" % number)) for number in range(400))
    assert given == {HERE: 200, 1: 100, 2: 100}
    given = Counter()
    for number in range(300):  # a third member joins and leaves continuously
        partitions = [(1, 1), (2, 1), (3, 1)][: 2 + number % 2]
        group = groups.get(GroupDestinations("g/#", [], partitions))
        given[_place(group.next(b"t"))] += 1
    assert min(given.values()) >= 50


def test_group_memory_is_independent_of_member_count() -> None:
    groups = SharedGroups("e0", False, lambda _: None)
    group = groups.get(GroupDestinations("g/#", [("e0", 10**9)], [(1, 10**9)]))
    assert group.next(b"t") == HERE
    assert len(group.others([])) == 2


def _place(choice: Remote | int | None) -> int:
    assert choice is not None
    return choice if isinstance(choice, int) else choice.partition
