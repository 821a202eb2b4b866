"""Bounds of a user: its stored sessions, the queue of each, its retained topics. They never widen other bounds."""

from typing import Any

import pytest

from tests.storage.requests import message, retained
from tests.storage.storage_cluster import Cluster, with_edge, with_settings
from tests.storage.test_session_bounds import connect


def refused(cluster: Cluster, name: str) -> int:
    return cluster.primary(0).core.event_counts().get(name, 0)


def test_connect_bounds_the_sessions_of_its_user() -> None:
    """0x97 with a counter.

    A wider bound than the partition's has no effect; ephemeral and resumed sessions are accepted.
    """
    cluster, edge = with_edge(partitions=1, settings=with_settings(sessions_per_user_max=3))
    assert [connect(edge, f"a{at}", owner="ann", sessions_max=2).reason_code for at in range(3)] == [0, 0, 0x97]
    assert connect(edge, "a1", owner="ann", sessions_max=1).session_present
    assert connect(edge, "a9", owner="ann", sessions_max=2, expiry_s=0).reason_code == 0
    assert connect(edge, "a2", owner="ann", sessions_max=99).reason_code == 0
    assert connect(edge, "a3", owner="ann", sessions_max=99).reason_code == 0x97
    assert connect(edge, "b1", owner="bob", sessions_max=1).reason_code == 0
    assert refused(cluster, "refused_sessions_user") == 2


@pytest.mark.parametrize("policy", ["drop_oldest", "refuse"])
@pytest.mark.parametrize("bound", [{"queue_messages_max": 2}, {"queue_bytes_max": 400}])
def test_connect_bounds_the_queue_of_its_session(policy: str, bound: dict[str, Any]) -> None:
    """The session row contains the bound, so the next primary applies it too; the next CONNECT replaces it."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(queue_full=policy))
    session = edge.open("ann", **bound)
    edge.subscribe(session, "t", qos=1)
    edge.close(session)
    cluster.crash_all()

    def queued() -> tuple[int, int]:
        one = cluster.primary(0).core.partitions[0].partition.by_client["ann"]
        return one.queued, one.queue_bytes

    tags = [edge.publish(message("x" * 100, "t"), 0) for _ in range(4)]
    cluster.settle()
    codes = [edge.acked[tag] for tag in tags]
    assert codes == ([0] * 4 if policy == "drop_oldest" else [0, 0, 0x97, 0x97])
    assert queued()[0] == 2 and queued()[1] <= 400
    assert refused(cluster, "dropped_queue_full" if policy == "drop_oldest" else "refused_queue_full") == 2
    edge.close(edge.open("ann"))
    edge.publish(message("x", "t"), 0)
    cluster.settle()
    assert queued()[0] == 3
    wider: dict[str, Any] = dict.fromkeys(bound, 1 << 40)
    edge.close(edge.open("ann", **wider))
    assert queued() == (3, queued()[1])


def test_fast_path_message_obeys_the_queue_bound() -> None:
    """The fast path checks it too: with the policy to refuse, in-flight messages count."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(queue_full="refuse"))
    session = edge.open("ann", queue_messages_max=3)
    edge.subscribe(session, "t", qos=1)
    tags = [edge.publish(message("x", "t"), 0) for _ in range(6)]
    cluster.settle()
    assert [edge.acked[tag] for tag in tags] == [0, 0, 0, 0x97, 0x97, 0x97]
    assert refused(cluster, "refused_queue_full") == 3


@pytest.mark.parametrize("crash", [False, True])
def test_publish_bounds_the_retained_topics_of_its_user(crash: bool) -> None:
    """0x97; a wider bound than the partition's has no effect, and another user has its own."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(retained_per_user_max=3))

    def put(topic: str, owner: bytes, most: int) -> int:
        if crash:
            cluster.crash_all()
        tag = edge.publish(retained(topic, "x", owner=owner, owner_made=3, owner_max=most), 0)
        cluster.settle()
        return edge.acked[tag]

    assert [put(topic, b"ann", 2) for topic in "abca"] == [0, 0, 0x97, 0]
    assert [put(topic, b"ann", 99) for topic in "cd"] == [0, 0x97]
    assert put("e", b"bob", 0) == 0


@pytest.mark.parametrize("crash", [False, True])
def test_publish_bounds_the_retained_bytes_of_its_user(crash: bool) -> None:
    """0x97 for growth beyond the bound; shrinking messages are accepted; a taken-over topic counts completely."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(piece_bytes=50))

    def put(topic: str, length: int, owner: bytes = b"ann", most: int = 100) -> int:
        if crash:
            cluster.crash_all()
        tag = edge.publish(retained(topic, "x" * length, owner=owner, owner_made=3, owner_bytes_max=most), 0)
        cluster.settle()
        return edge.acked[tag]

    steps = [("a", 60), ("b", 41), ("b", 40), ("a", 61), ("c", 1), ("a", 50), ("c", 10), ("c", 11), ("a", 0), ("c", 60)]
    assert [put(*step) for step in steps] == [0, 0x97, 0, 0x97, 0x97, 0, 0, 0x97, 0, 0]
    assert crash or refused(cluster, "refused_retained_user") == 4
    assert [put("c", 50, b"bob", 49), put("c", 49, b"bob", 49), put("d", 60)] == [0x97, 0, 0]
    assert put("e", 1_000, most=0) == 0  # of another edge, or of a user without this limit
    assert [put("e", 999), put("d", 61)] == [0, 0x97]  # existing messages may stay or shrink
