"""A partition moves to a node, or an edge dies: no single iteration blocks the node's loop, whatever their size.

The bound is the processor time of the longest ``handle``, over the model's store.
"""

import pytest

from storage.state import keys
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster, with_settings
from tests.storage.timed_iterations import middle_round_ms, timed_rounds
from tests.turn_time import assert_within, timed
from wire.messages.batches import PublishMessage
from wire.messages.sessions import SessionOpened, SessionSubscription

ITERATION_MS = 5  # most processor time of one iteration
LONGEST = 5  # iterations whose median is checked: a busy machine prolongs single ones
SIZES = [pytest.param(4_000, id="small"), pytest.param(10_000, id="full", marks=pytest.mark.slow)]


def opened(edge: Edge, clients: int) -> list[Connection]:
    """Open stored sessions."""
    connections = []
    for number in range(clients):
        connections.append(edge.open(f"c{number}", settle=False))
        if number % 500 == 499:
            edge.cluster.settle()
    edge.cluster.settle()
    return connections


def publish(edge: Edge, topic: bytes, count: int) -> None:
    """Publish messages with QoS 1."""
    for at in range(count):
        edge.publish(PublishMessage(0, topic, b"m", 1), 0)
        if at % 500 == 499:
            edge.cluster.settle()
    edge.cluster.settle()


def until_served(cluster: Cluster) -> None:
    """Step until the only partition is served."""
    core = cluster.primary(0).core
    for _ in range(500):
        if core.partitions and core.serving:
            return
        cluster.step()
    raise AssertionError("not served")


def assert_short(found: list[float], what: str) -> None:
    """Print the longest iterations, and fail if they are too long."""
    print(f"{what}: {[round(ms, 2) for ms in sorted(found)[-4:]]} ms")
    assert_within(what, max(found), ITERATION_MS)


@pytest.mark.parametrize("count", SIZES)
@timed
def test_start_with_one_long_queue_has_short_iterations(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    alice = edge.open("alice", "q")
    edge.close(alice)
    publish(edge, b"q", count)
    with timed_rounds(monkeypatch) as found:
        cluster.restart("s1")
        until_served(cluster)
    (session,) = cluster.primary(0).core.partitions[0].partition.sessions.values()
    assert session.queued == count and session.push_seq == 1 and session.next_seq == count + 1
    assert_short(found, f"{count} messages of one session")


@pytest.mark.parametrize("count", SIZES)
@timed
def test_start_with_many_sessions_has_short_iterations(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    for number, client in enumerate(opened(edge, count)):
        edge.close(client, settle=number % 500 == 499)
    cluster.settle()
    with timed_rounds(monkeypatch) as found:
        cluster.restart("s1")
        until_served(cluster)
    hosted = cluster.primary(0).core.partitions[0]
    assert len(hosted.partition.sessions) == count and hosted.tally.online == 0 and hosted.tally.keys == count
    assert_short(found, f"{count} sessions")


@timed
def test_failover_with_connections_and_pending_connects_has_short_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=1, nodes=2, replicas=2)
    one, two = cluster.edges["e1"], cluster.edges["e2"]
    clients = opened(one, 1_000)
    with timed_rounds(monkeypatch) as found:
        cluster.kill(cluster.primary(0).key.node)
        later = []
        for number in range(1_000):
            later.append(two.open(f"d{number}", settle=False))
            if number % 100 == 99:
                cluster.step()
        cluster.run(4.0)
    assert len(two.answers(SessionOpened)) == 1_000
    sessions = cluster.primary(0).core.partitions[0].partition.by_client
    assert all(sessions[client.client_id].edge == "e1" for client in clients)
    assert all(sessions[client.client_id].edge == "e2" for client in later)
    assert_short(found, "1 000 connections, 1 000 CONNECTs")


@timed
def test_failover_with_queues_of_connected_sessions_has_short_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=1, nodes=2, replicas=2)
    edge = cluster.edges["e1"]
    clients = opened(edge, 300)
    for client in clients:
        edge.subscribe(client, "all", settle=False)
    cluster.settle()
    for _ in range(100):
        edge.publish(PublishMessage(0, b"all", b"m", 1), 0)
    cluster.run(3.0)
    with timed_rounds(monkeypatch) as found:
        cluster.kill(cluster.primary(0).key.node)
        cluster.run(6.0)
    sessions = cluster.primary(0).core.partitions[0].partition.sessions.values()
    assert [session.edge for session in sessions] == ["e1"] * 300
    assert all(session.queued == 100 for session in sessions)
    assert_short(found, "300 connections, 100 messages each")


@timed
def test_death_of_an_edge_in_many_partitions_has_short_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=8)
    opened(cluster.edges["e1"], 4_000)
    with timed_rounds(monkeypatch) as found:
        cluster.kill_edge("e1")
        cluster.settle(10.0)
        cluster.run(1.0)
    hosted = cluster.nodes["s1"].core.partitions.values()
    assert not any(session.edge for one in hosted for session in one.partition.sessions.values())
    assert_short(found, "4 000 connections in 8 partitions")


@timed
def test_session_with_many_gaps_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client acknowledged every second message of a large window."""
    cluster = Cluster(partitions=1, settings=with_settings(outbound_window_max=8_000))
    edge = cluster.edges["e1"]
    alice = edge.open("alice", receive_maximum=8_000)
    edge.subscribe(alice, SessionSubscription("q", 1))
    publish(edge, b"q", 2_900)
    for at, push in enumerate(list(alice.outbound.values())):
        if at % 2:
            edge.acknowledge(push, 4)
    cluster.run(2.0)
    assert len(alice.received) == 2_900
    with timed_rounds(monkeypatch) as found:
        cluster.restart("s1")
        until_served(cluster)
    hosted = cluster.primary(0).core.partitions[0]
    (session,) = hosted.partition.sessions.values()
    assert session.queued == len(alice.outbound) < 2_000
    assert_within("a session with gaps", middle_round_ms(found, LONGEST), ITERATION_MS)


@timed
def test_large_bodies_are_loaded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """48 MB of messages, and as much in retained messages."""
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    edge.close(edge.open("alice", "q/#"))
    for number in range(48):
        edge.publish(PublishMessage(0, f"q/{number}".encode(), b"m" * 1_000_000, 1, retain=True), 0)
        cluster.settle()
    with timed_rounds(monkeypatch) as found:
        cluster.restart("s1")
        until_served(cluster)
    hosted = cluster.primary(0).core.partitions[0]
    (session,) = hosted.partition.sessions.values()
    assert session.queued == 48 and len(hosted.retained) == 48
    assert hosted.retained.payload_bytes == 48_000_000
    assert_within("large bodies", middle_round_ms(found, LONGEST), ITERATION_MS)
    alice = edge.open("alice")
    assert [len(push.payload) for push in alice.received] == [1_000_000] * 48
    assert cluster.nodes["s1"].store.scan(*keys.kind_range(0, keys.BODY), 1)
