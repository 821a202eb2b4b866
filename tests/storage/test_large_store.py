"""A store with many sessions: loaded in small slices, cheap while sessions are disconnected, reported in pieces."""

import pytest

from storage.hosting import loading, placements, route_reports
from storage.hosting.route_reports import RouteReports
from storage.state.durable_sessions import DurableSession
from storage.state.rows import QueueEntry, SessionRow, encode_entry, outline_entry
from tests.storage.storage_cluster import Cluster, with_edge
from wire.messages.batches import PublishMessage
from wire.messages.cluster_map import ClusterMap, Delegation, ShardEntry
from wire.messages.control import decode_control
from wire.messages.routes import ReportRoutes
from wire.node.route_registrar import by_shard


def large_cluster(sessions: int, queued: int) -> Cluster:
    """Return a cluster of one partition with disconnected sessions, each with queued messages."""
    cluster, edge = with_edge(partitions=1)
    for number in range(sessions):
        connection = edge.open(f"client {number}")
        edge.subscribe(connection, "all/#", f"to/{number}/+")
        edge.close(connection)
    for number in range(queued):
        edge.publish(PublishMessage(0, b"all/x", b"%d" % number * 700, 1), 0)
    cluster.settle()
    return cluster


def test_large_partition_is_loaded_over_many_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single partition may exceed an iteration's budget: no iteration reads more than its slices."""
    cluster = large_cluster(9, 5)
    before = [(session.queued, session.queue_bytes) for session in hosted_sessions(cluster)]
    monkeypatch.setattr(loading, "SLICE_ROWS", 3)
    monkeypatch.setattr(placements, "LOADED_PER_ITERATION", 3)
    cluster.kill("s1", declare=False)
    cluster.start("s1")
    core = cluster.nodes["s1"].core
    rounds = 0
    while not (core.partitions and core.serving):
        cluster.step()
        rounds += core.loading
    assert rounds > 20
    assert [(session.queued, session.queue_bytes) for session in hosted_sessions(cluster)] == before
    edge = cluster.edges["e1"]
    connection = edge.open("client 7")
    cluster.settle()
    assert [push.payload[:1] for push in connection.outbound.values()] == [b"0", b"1", b"2", b"3", b"4"]


def hosted_sessions(cluster: Cluster) -> list[DurableSession]:
    """Return the sessions of the only partition."""
    return list(cluster.nodes["s1"].core.partitions[0].partition.sessions.values())


def test_disconnected_session_creates_no_unused_parts() -> None:
    """Most of a million stored sessions; counting and saving creates no parts either."""
    row = SessionRow("client", 7, 3600, deadline=99, head=4, next_seq=4, last_identifier=17, next_inbound=3)
    session = DurableSession.from_row(1 << 48 | 1, row)
    assert session.row() == row
    assert session.queued == 0 and session.head == 4
    session.unbind()
    late = ("given", "identifiers", "inbound", "inflight", "ready", "runs", "sizes", "subscriptions", "unsent")
    assert [name for name in late if session.made(name) is not None] == []
    assert session.identifiers.last == 17
    with pytest.raises(AttributeError):
        _ = session.no_such_part


def test_entry_outline_matches_the_decoded_entry() -> None:
    """Queues are restored from it alone."""
    for entry in (
        QueueEntry(1, b"a/b", b"payload", b"props", 2, True, 5, 9, 1, 1, 2, 3),
        QueueEntry(2, b"topic", b"", b"", 1),
        QueueEntry(3, b"a", b"", b"pp", 1, body=12),
        QueueEntry(4, b"a", b"payload", b"pp", 1, share=b"g/a", published=1, own_bytes=2, arrived=1 << 40),
        QueueEntry(5, b"a", b"", b"", 2, body=12, arrived=1),
    ):
        size = len(entry.topic) + len(entry.properties) + (0 if entry.body else len(entry.payload))
        outline = (entry.qos, entry.state, entry.packet_identifier, entry.body, size, entry.arrived)
        assert outline_entry(encode_entry(entry)) == outline


def test_route_reports_are_bounded_per_iteration_message_and_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new owner gets all registered filters, in pieces: no link accepts a million at once."""
    monkeypatch.setattr(route_reports, "REPORTED_PER_ITERATION", 4)
    monkeypatch.setattr(route_reports, "REPORT_ROUTES_MAX", 5)
    cluster, edge = with_edge(partitions=8)
    for number in range(12):
        connection = edge.open(f"client {number}")
        edge.subscribe(connection, f"to/{number}")
    cluster.settle()
    core = cluster.nodes["s1"].core
    room = 0
    reports = RouteReports(core.placements.hosted, lambda: core.map, lambda _: room)
    reports.add(list(core.partitions.values()), set(range(len(core.map.shards))))
    assert reported(reports, cluster) == []
    room = route_reports.REPORT_SPACE_BYTES
    told: list[str] = []
    rounds = 0
    while len(reports):
        told += reported(reports, cluster)
        rounds += 1
    assert sorted(told) == sorted(f"to/{number}" for number in range(12))
    assert rounds >= 2


def reported(reports: RouteReports, cluster: Cluster) -> list[str]:
    """Return the filters that one iteration reports."""
    filters = []
    for _, _, payload in reports.send(cluster.now, loading=False):
        message = decode_control(payload)
        if isinstance(message, ReportRoutes):
            routes = [route.topic_filter for report in message.reports for route in report.routes]
            assert len(routes) <= 5 or len(message.reports) == 1
            filters += routes
    return filters


def test_filters_placed_by_first_level_match_single_placement() -> None:
    """Two million filters are placed at a restart: the fast method must match the slow one."""
    names = ["a", "a/b", "a/+/c", "+", "+/a", "#", "a/#", "$share/g/a/b", "$share/g/+/b", "$SYS/x", "/a", "", "b/#"]
    for delegations in ((), (Delegation("a/b", 2),)):
        cluster_map = ClusterMap("c", shards=[ShardEntry() for _ in range(7)], base_shards=7, delegations=delegations)
        placed: dict[int, list[str]] = {}
        for name in names:
            topic_filter = name.split("/", 2)[2] if name.startswith("$share") else name
            for shard in cluster_map.shards_for_filter(topic_filter):
                placed.setdefault(shard, []).append(name)
        assert by_shard(cluster_map, names) == placed
