"""Moved shards keep each iteration of an edge with many filters short: reports to new owners are sliced."""

from collections.abc import Iterator

import pytest

from tests.edge import edge_harness
from tests.edge.turns import TimedEdge
from tests.memory import without_collector
from tests.turn_time import assert_within, timed
from wire.messages.cluster_map import ClusterMap, Delegation, ShardEntry
from wire.messages.map_pages import map_pages
from wire.messages.routes import AddRoutes, RemoveRoutes, ReportRoutes

SHARDS = 64
TURN_MS = 10.0  # processor time, for a slow machine; 1 to 2 ms were measured
SIZES = [pytest.param(20_000, id="small"), pytest.param(100_000, id="full", marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def no_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(edge_harness, "SHARDS", SHARDS)
    with without_collector():
        yield


def filters(count: int) -> list[str]:
    return [f"r{number % 997}/d{number}/#" for number in range(count)]


def holding(names: list[str]) -> TimedEdge:
    """Return an edge with registered filters."""
    edge = TimedEdge()
    for start in range(0, len(names), 1_000):
        edge.core.registrar.hold(names[start : start + 1_000], edge.now)
    edge.settle()
    assert all(edge.core.registrar.stands(name) for name in names)
    edge.worst_ms()
    return edge


def moved(epoch: int, delegations: tuple[Delegation, ...] = ()) -> ClusterMap:
    found = edge_harness.cluster_map(epoch)
    found.shards = [ShardEntry(epoch, "r0") for _ in found.shards]
    found.delegations = delegations
    return found


def reported(edge: TimedEdge, epoch: int) -> dict[int, list[str]]:
    """Return the filters of complete reports at a shard_epoch, by shard."""
    whole: dict[int, list[str]] = {}
    begun: dict[int, list[str]] = {}
    for message in edge.take(ReportRoutes):
        if message.shard_epoch != epoch:
            continue
        (piece,) = message.reports
        if piece.first:
            begun[message.shard] = []
        begun[message.shard] += [route.topic_filter for route in piece.routes]
        if piece.last:
            whole[message.shard] = begun.pop(message.shard)
    assert not begun
    return whole


def by_shard(cluster_map: ClusterMap, names: list[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {shard: [] for shard in range(SHARDS)}
    for name in names:
        for shard in cluster_map.shards_for_filter(name):
            found[shard].append(name)
    return found


@pytest.mark.parametrize("count", SIZES)
@timed
def test_reports_of_many_filters_are_sliced(count: int) -> None:
    names = filters(count)
    edge = holding(names)
    edge.held = {ReportRoutes}
    cluster_map = moved(2)
    edge.step(lambda: edge.router(*map_pages(cluster_map)))
    assert edge.core.busy
    turns = 0
    while edge.core.busy:
        edge.step()
        turns += 1
    assert turns > count // 2_000
    assert_within(f"{count} filters", edge.worst_ms(), TURN_MS)
    assert reported(edge, 2) == by_shard(cluster_map, names)


def test_shards_moved_during_a_report_are_reported_again() -> None:
    """Concurrent changes are sent separately, after the report."""
    names = filters(5_000)
    edge = holding(names)
    edge.held = {ReportRoutes, AddRoutes, RemoveRoutes}
    edge.step(lambda: edge.router(*map_pages(moved(2))))
    for _ in range(5):
        edge.step()
    gone, new = names[-3:], ["new/1", "new/2"]
    edge.core.registrar.release(gone)
    edge.core.registrar.hold(new, edge.now)
    assert edge.core.busy
    edge.step(lambda: edge.router(*map_pages(moved(3))))
    while edge.core.busy:
        edge.step()
    stay = [name for name in names if name not in gone]
    found = reported(edge, 3)
    assert {shard: set(some) for shard, some in found.items()} == {
        shard: set(some) for shard, some in by_shard(edge.core.map, stay + new).items()
    }
    removed = {route.topic_filter for message in edge.take(RemoveRoutes) for route in message.routes}
    assert removed == set(gone)
    assert {route.topic_filter for message in edge.take(AddRoutes) for route in message.routes} == set(new)


def test_report_refused_by_a_link_starts_again() -> None:
    names = filters(3_000)
    edge = holding(names)
    edge.held = {ReportRoutes}
    edge.step(lambda: edge.router(*map_pages(moved(2))))
    edge.core.node.reachable = False
    for _ in range(3):
        edge.step()
    edge.core.node.reachable = True
    while edge.core.follower.waits or edge.core.busy:
        edge.now += 0.05
        edge.step()
    assert reported(edge, 2) == by_shard(edge.core.map, names)


@pytest.mark.parametrize("count", SIZES)
@timed
def test_many_filters_move_to_other_shards(count: int) -> None:
    """Each is registered at its new owners, and confirmed by their responses."""
    names = filters(count)
    edge = holding(names)
    cluster_map = moved(2, (Delegation("r1", 2),))
    edge.step(lambda: edge.router(*map_pages(cluster_map)))
    assert not any(edge.core.registrar.stands(name) for name in names)
    edge.settle()
    assert_within(f"{count} filters", edge.worst_ms(), TURN_MS)
    assert all(edge.core.registrar.stands(name) for name in names)
    assert not edge.core.registrar.waits
