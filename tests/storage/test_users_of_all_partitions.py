"""Limits of a user over all partitions: storage nodes exchange their usage, and each applies the limit to the sum."""

from typing import Any

from storage.state.user_sums import ACTIVE_MAX, ACTIVE_S, NAME_MAX, UserSums, UserUsage
from tests.storage.requests import retained
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster
from wire.messages.control import decode_control
from wire.messages.frames import FrameKind
from wire.messages.sessions import CloseSession, OpenSession, SessionOpened
from wire.messages.user_counts import UserCounts

REPORTED_S = 0.5  # more than two reports


def ask(edge: Edge, partition: int, client_id: str, most: int, **more: Any) -> OpenSession:
    asked: dict[str, Any] = {"clean_start": False, "expiry_s": 100, "owner": "ann", "sessions_max": most} | more
    connection = edge.connections[client_id] = Connection(client_id, next(edge.cluster.numbers))
    request = OpenSession(*edge.head(partition), client_id, connection.number, **asked)
    edge.ask(request)
    return request


def answer(edge: Edge, request: OpenSession) -> SessionOpened:
    (found,) = [one for one in edge.answers(SessionOpened) if one.request == request.request]
    assert isinstance(found, SessionOpened)
    return found


def connect(edge: Edge, partition: int, client_id: str, most: int, **more: Any) -> int:
    """Connect, and let the reports arrive; return the reason code."""
    request = ask(edge, partition, client_id, most, **more)
    edge.cluster.run(REPORTED_S)
    return answer(edge, request).reason_code


def refused(cluster: Cluster, name: str = "refused_sessions_user") -> int:
    return sum(node.core.event_counts().get(name, 0) for node in cluster.nodes.values())


def test_sessions_in_all_partitions_of_a_node_count_at_once() -> None:
    """0x97 for one more in any partition; another user has its own, and a resumed session does not count."""
    cluster = Cluster(nodes=1, partitions=4)
    edge = cluster.edges["e1"]
    requests = [ask(edge, at, f"a{at}", 2) for at in range(4)]
    other = ask(edge, 3, "b", 2, owner="bob")
    cluster.settle()
    assert [answer(edge, one).reason_code for one in requests] == [0, 0, 0x97, 0x97] and refused(cluster) == 2
    assert answer(edge, other).reason_code == 0
    assert connect(edge, 0, "a0", 1) == 0
    assert connect(edge, 3, "a3", 0) == 0  # without a limit


def test_sessions_at_other_nodes_count_once_reported() -> None:
    """An end at any node frees a place."""
    cluster = Cluster(nodes=3, replicas=3, partitions=6)
    edge = cluster.edges["e1"]
    assert len({cluster.primary(at).key.node for at in range(6)}) == 3
    codes = [connect(edge, at, f"a{at}", 4) for at in range(6)]
    assert codes == [0, 0, 0, 0, 0x97, 0x97] and refused(cluster) == 2
    (opened,) = [one for one in edge.answers(SessionOpened) if one.partition == 0]
    edge.ask(CloseSession(*edge.head(0), "a0", opened.owner_epoch, True, 0))
    cluster.run(REPORTED_S)
    assert [connect(edge, 5, "a5", 4), connect(edge, 4, "a4", 4)] == [0, 0x97]


def test_user_limit_before_reports_applies_per_node() -> None:
    """The overshoot while links deliver no frames."""
    cluster = Cluster(nodes=3, replicas=3, partitions=6)
    edge = cluster.edges["e1"]
    cluster.filter = lambda _, __, kind, payload: not _is_usage_report(kind, payload)
    requests = [ask(edge, at, f"a{at}-{number}", 4) for number in range(6) for at in range(6)]
    cluster.run(REPORTED_S)
    assert [answer(edge, one).reason_code for one in requests].count(0) == 3 * 4


def _is_usage_report(kind: int, payload: bytes) -> bool:
    return kind == FrameKind.CONTROL and isinstance(decode_control(payload), UserCounts)


def test_usage_of_a_dead_node_counts_at_the_new_primaries() -> None:
    """Exactly once."""
    cluster = Cluster(nodes=3, replicas=3, partitions=6)
    edge = cluster.edges["e1"]
    assert [connect(edge, at, f"a{at}", 6) for at in range(5)] == [0] * 5
    cluster.kill(cluster.primary(0).key.node)
    cluster.run(5.0)
    connect(edge, 0, "a0", 6)  # a decision triggers the query of the other nodes
    assert [connect(edge, at, f"b{at}", 6) for at in (1, 2)] == [0, 0x97]


def test_retained_bytes_count_in_all_partitions() -> None:
    """No query is sent about a user with little usage here; later the others' bytes count."""
    cluster = Cluster(nodes=2, replicas=2, partitions=4)
    edge = cluster.edges["e1"]

    def put(partition: int, topic: str, length: int) -> int:
        message = retained(topic, "x" * length, owner=b"ann", owner_made=3, owner_bytes_max=1_600)
        tag = edge.publish(message, partition)
        cluster.run(REPORTED_S)
        return edge.acked[tag]

    topics = {cluster.map.partition_for(f"t{number}"): f"t{number}" for number in range(40)}
    assert [put(at, topics[at], 50) for at in range(4)] == [0, 0, 0, 0]
    assert not any(len(node.core.placements.sums) for node in cluster.nodes.values())
    assert [put(at, topics[at], 700) for at in range(4)] == [0, 0, 0x97, 0x97]
    assert refused(cluster, "refused_retained_user") == 2
    assert [put(2, topics[2], 150), put(3, topics[3], 51), put(0, topics[0], 699), put(3, topics[3], 51)] == [
        0,
        0x97,
        0,
        0,
    ]


def test_retained_topics_count_in_all_partitions() -> None:
    cluster = Cluster(nodes=2, replicas=2, partitions=4)
    edge = cluster.edges["e1"]

    def put(partition: int, topic: str, payload: str = "x") -> int:
        tag = edge.publish(retained(topic, payload, owner=b"ann", owner_made=3, owner_max=2), partition)
        cluster.run(REPORTED_S)
        return edge.acked[tag]

    topics = {cluster.map.partition_for(f"t{number}"): f"t{number}" for number in range(40)}
    assert [put(at, topics[at]) for at in range(4)] == [0, 0, 0x97, 0x97]
    assert refused(cluster, "refused_retained_user") == 2
    assert put(0, topics[0], "y") == 0  # an existing one
    assert [put(0, topics[0], ""), put(3, topics[3]), put(2, topics[2])] == [0, 0, 0x97]


def test_nodes_without_changes_send_no_reports() -> None:
    """Two nodes that both decide about a user do not answer each other endlessly; without limits no report is sent."""
    cluster = Cluster(nodes=2, replicas=2, partitions=2)
    edge = cluster.edges["e1"]
    told: list[UserCounts] = []
    seen = cluster.filter

    def watch(source: Any, target: str, kind: int, payload: bytes) -> bool:
        if kind == FrameKind.CONTROL and isinstance(message := decode_control(payload), UserCounts):
            told.append(message)
        return seen(source, target, kind, payload)

    cluster.filter = watch
    for at in range(2):
        assert connect(edge, at, f"n{at}", 0) == 0
    assert not told
    for at in range(2):
        assert connect(edge, at, f"a{at}", 9) == 0
    cluster.run(10.0)
    assert 2 <= len(told) <= 8


def test_user_sums_are_bounded() -> None:
    """The user that was idle longest is removed; long names are never reported."""
    sums = UserSums()
    for number in range(ACTIVE_MAX + 5):
        if number % 2:
            sums.sessions(f"u{number}", 0.0)
        else:
            sums.told("s2", f"u{number}", UserUsage(7, 8, 9), asked=True, now=0.0)
    assert len(sums) == ACTIVE_MAX and (sums.sessions("u0", 1.0), sums.sessions("u8", 1.0)) == (0, 7)
    long = "x" * (NAME_MAX + 1)
    sums.add_sessions(long, 3)
    assert sums.sessions(long, 1.0) == 3 and long not in sums
    sums.expire_idle(ACTIVE_S + 2.0)
    assert not len(sums) and sums.sessions("u8", 99.0) == 0


def test_user_active_after_idle_time_is_queried_again() -> None:
    """Earlier reports are older than the period in which others send updates."""
    sums = UserSums()
    sums.sessions("ann", 0.0)
    assert sums.take_dirty(9, 0.0) == [("ann", True)]
    sums.told("s2", "ann", UserUsage(5), asked=False, now=0.1)
    assert sums.sessions("ann", 1.0) == 5 and not sums.dirty
    assert sums.sessions("ann", 30.0) == 5 and sums.take_dirty(9, 30.0) == [("ann", True)]
    assert sums.sessions("ann", 30.0 + ACTIVE_S) == 0 and sums.take_dirty(9, 90.0) == [("ann", True)]
