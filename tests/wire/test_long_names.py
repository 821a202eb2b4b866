"""Messages fit a frame for topics and filters of any length."""

from itertools import count

import pytest

from router.routes.shard import RouteShard
from storage.hosting.route_reports import _cut
from storage.sessions.route_window import UnsentRoutes
from tests.edge.edge_harness import Edge
from wire.messages.cluster_map import ClusterMap, ShardEntry
from wire.messages.control import Control, encode_control
from wire.messages.frames import FRAME_BYTES_MAX
from wire.messages.pieces import pieces
from wire.messages.routes import AddRoutes, Invalidate, ReportRoutes, Resolve, Resolved, RouteEntry
from wire.node.route_registrar import RouteRegistrar, route_entry, sender_report

# The largest topic_bytes_max, in three bytes a character.
LONG = [f"{number:05}/" + "\u20ac" * ((65_535 - 6) // 3) for number in range(300)]
WILD = [f"{name[:-1]}/+" for name in LONG]
MAP = ClusterMap("c", 1, shards=[ShardEntry(1, "r0")], base_shards=1)


def check(messages: list[Control]) -> None:
    assert messages
    for message in messages:
        assert len(encode_control(message)) < FRAME_BYTES_MAX // 4


@pytest.mark.parametrize("length", [1, 100, 700, 70_000])
def test_pieces_contain_all_names_in_order(length: int) -> None:
    names = [str(number) * length for number in range(250)]
    cut = list(pieces(names, 100))
    assert [name for piece in cut for name in piece] == names
    assert all(0 < len(piece) <= 100 for piece in cut)
    assert list(pieces([], 100)) == []


def test_edge_routes_and_reports_fit_a_frame() -> None:
    sent: list[Control] = []
    registrar = RouteRegistrar(-1, 7, lambda _, message: sent.append(message), lambda: MAP, lambda _: None)
    registrar.hold(LONG, 0.0)
    check(sent)
    assert isinstance(sent[0], AddRoutes)
    check([ReportRoutes(0, 1, [step[1]]) for step in registrar.report({0}) if step is not None])
    sent.clear()
    registrar.release(LONG)
    check(sent)


def test_partition_routes_and_reports_fit_a_frame() -> None:
    reports = [
        step[1]
        for number in range(20)
        for step in sender_report(MAP, number, 1, 1, dict.fromkeys(LONG[:50], 1), {0})
        if step is not None
    ]
    cut = _cut(reports)
    assert [report for piece in cut for report in piece] == reports
    check([ReportRoutes(0, 1, piece) for piece in cut])
    unsent = UnsentRoutes()
    unsent.add("r0", 0, list(LONG))
    asked: list[str] = []
    while unsent.waits_for("r0"):
        _, names = unsent.take("r0")
        check([AddRoutes(1, 0, 1, 3, 1, 1, [route_entry(name, 1) for name in names])]) if names else None
        asked += names
    assert sorted(asked) == LONG


def test_edge_requests_fit_a_frame() -> None:
    edge = Edge()
    edge.held = {Resolve}
    for topic in LONG:
        edge.core.cache.need(topic, lambda _: None)
    asked: list[Resolve] = []
    while edge.core.cache.waits and not asked:
        edge.core.cache.flush(edge.now)
        asked += edge.take(Resolve)
    check(list(asked))
    assert sorted(topic for question in asked for topic in question.topics) == LONG


def test_router_replies_and_orders_fit_a_frame() -> None:
    """1 000 routes with one cached topic each arrive in one AddRoutes, and are removed with their edge."""
    shard = RouteShard(0, 1, [], [], 100_000)
    sent: list[Control] = []

    def go_on() -> None:
        while shard.has_slices:
            shard.run_slice(100)
        sent.extend(message for _, message in shard.take_sends())

    numbers = count(1)
    for filters in (LONG, WILD):
        shard.resolve("e1", Resolve(next(numbers), 0, 1, LONG))
        go_on()
        number = next(numbers)
        shard.add("e2", AddRoutes(number, 0, 1, -1, 1, number, [RouteEntry(name) for name in filters]))
        go_on()
        shard.resolve("e1", Resolve(next(numbers), 0, 1, LONG))
        shard.edge_dead("e2")
        go_on()
    assert any(isinstance(message, Invalidate) for message in sent)
    assert any(isinstance(message, Resolved) for message in sent)
    check(sent)
