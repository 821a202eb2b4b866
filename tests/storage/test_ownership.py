"""The owner of a client identifier: a CONNECT has its effect once, however often it is sent, at any primary."""

from typing import Any

from storage.state import keys
from tests.storage.requests import WILL, fired, message
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster, with_edge
from wire.messages.control import encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.sessions import Claim, Claims, KickSession, OpenSession, PollClaims, SessionClosed, SessionOpened

TAKEN_OVER = 0x8E


def again(edge: Edge, first: OpenSession, **changed: Any) -> SessionOpened:
    """Send an OpenSession a second time, under the current epoch, and return the reply."""
    before = len(edge.answers(SessionOpened))
    names = {name: getattr(first, name) for name in first.__struct_fields__}
    edge.ask(OpenSession(**{**names, "partition_epoch": edge.epoch(first.partition), **changed}))
    edge.cluster.settle()
    (answer,) = edge.answers(SessionOpened)[before:]
    assert isinstance(answer, SessionOpened)
    return answer


def opened(cluster: Cluster, edge: str = "e1", **options: Any) -> tuple[OpenSession, Connection]:
    """Open alice's session with a will; return the request, too."""
    asked: list[OpenSession] = []
    ask = cluster.edges[edge].ask

    def noted(message: OpenSession) -> int:
        asked.append(message)
        return ask(message)

    cluster.edges[edge].ask = noted  # type: ignore[method-assign]
    connection = cluster.edges[edge].open("alice", will=WILL, **options)
    cluster.edges[edge].ask = ask  # type: ignore[method-assign]
    return asked[0], connection


def test_connect_repeat_after_a_takeover_has_no_effect() -> None:
    """Simulation seed 2013: the first connection's will was published again for every repeat."""
    for crash in (False, True):
        cluster = Cluster(partitions=1)
        first, _ = opened(cluster)
        newer = cluster.edges["e2"].open("alice")
        if crash:
            cluster.crash_all()
        assert again(cluster.edges["e1"], first).reason_code == TAKEN_OVER
        cluster.run(3.0)
        assert len(fired(cluster)) == 1
        cluster.edges["e2"].close(newer)
        assert [answer.accepted for answer in cluster.edges["e2"].answers(SessionClosed)] == [True]


def test_connect_repeat_after_the_end_has_no_effect() -> None:
    """Simulation seed 2013: the claims poll had ended the connection; its repeated CONNECT created a second will."""
    cluster = Cluster(partitions=1)
    first, connection = opened(cluster)
    connection.open = False
    cluster.crash_all()  # the new incarnation polls for claims: no edge has the connection
    assert len(fired(cluster)) == 1
    assert again(cluster.edges["e1"], first).reason_code == TAKEN_OVER
    cluster.run(3.0)
    assert len(fired(cluster)) == 1


def test_connect_repeat_of_the_current_owner_is_answered() -> None:
    """The reply was lost with the primary: the second one is equal, and no will is published."""
    cluster = Cluster(partitions=1)
    first, connection = opened(cluster)

    def opening(message: PollClaims, source: PeerKey) -> None:
        answer = Claims(
            message.request,
            message.partition,
            message.partition_epoch,
            [Claim("alice", connection.number, 0, 0), Claim("alice", connection.number + 100, 0, 0)],
        )
        cluster.send(cluster.edges["e1"].key, source.node, FrameKind.CONTROL, encode_control(answer))

    cluster.edges["e1"].polled = opening  # type: ignore[method-assign]
    cluster.crash_all()
    answer = again(cluster.edges["e1"], first)
    assert answer.reason_code == 0 and answer.session == connection.session
    cluster.run(3.0)
    assert fired(cluster) == []


def test_connect_of_an_incarnation_unknown_to_the_primary_is_processed_later() -> None:
    """Its edge restarts and serves clients at once; the primary's map is a step behind."""
    cluster = Cluster(partitions=1)
    cluster.silence(cluster.map.partitions[0].primary)
    cluster.kill_edge("e1")
    connection = cluster.start_edge("e1").open("alice", settle=False)
    cluster.run(0.1)
    assert not connection.owner_epoch
    cluster.end_silence()
    cluster.settle()
    assert connection.owner_epoch


def test_pending_connect_of_a_dead_edge_has_no_effect() -> None:
    """Simulation seed 10037: the dead edge's requests were forgotten, and its will was published a second time."""
    cluster = Cluster(partitions=1)
    first, _ = opened(cluster)
    incarnation = cluster.edges["e1"].key.incarnation
    cluster.kill_edge("e1")
    cluster.settle()
    assert len(fired(cluster)) == 1
    # Arrived while the partition was not served
    cluster.primary(0).core.partitions[0].owners.open(first, "e1", incarnation)
    cluster.edges["e2"].open("alice")
    cluster.run(3.0)
    assert len(fired(cluster)) == 1


def test_withdrawn_connect_ends_its_connection() -> None:
    """The client is gone when its CONNECT is sent again."""
    cluster = Cluster(partitions=1)
    first, _ = opened(cluster)
    assert again(cluster.edges["e1"], first, withdrawn=True).reason_code == TAKEN_OVER
    assert len(fired(cluster)) == 1
    request = first.request + 1
    assert again(cluster.edges["e1"], first, request=request, connection=99, withdrawn=True).reason_code == TAKEN_OVER
    cluster.run(3.0)
    assert len(fired(cluster)) == 1


def test_acknowledged_connects_are_forgotten() -> None:
    """The memory is bounded by the edges' requests in flight; a dead edge leaves none."""
    cluster = Cluster(partitions=1)
    first, _ = opened(cluster)
    node = cluster.nodes["s1"]
    start, stop = keys.kind_range(0, keys.OPENED)
    assert len(node.store.scan(start, stop, 10)) == 1
    second = first.request + 1
    assert again(cluster.edges["e1"], first, request=second, connection=98, answered_below=second).reason_code == 0
    assert again(cluster.edges["e1"], first, answered_below=0).reason_code == TAKEN_OVER  # a delayed copy
    cluster.run(0.5)
    assert len(node.store.scan(start, stop, 10)) == 1
    cluster.kill_edge("e1")
    cluster.run(0.5)
    assert node.store.scan(start, stop, 10) == []


def test_new_primary_kicks_the_older_connection() -> None:
    """The former primary committed the takeover and died before the older edge got the kick."""
    cluster = Cluster(partitions=1)
    old, new = cluster.edges["e1"], cluster.edges["e2"]
    old.answer_kicks = False
    connection = old.open("alice")
    new.open("alice", settle=False)
    cluster.run(0.5)
    connection.open = True  # it got no kick
    old.kicked.clear()
    cluster.crash_all()
    cluster.run(0.5)
    assert (old.kicked[0].client_id, old.kicked[0].connection) == ("alice", connection.number)
    assert isinstance(old.kicked[0], KickSession) and not new.kicked


def test_takeover_waits_at_most_200_ms_for_the_kick() -> None:
    """The older edge does not reply: the CONNACK is sent after kick_wait_s, and the kick is repeated (S-18)."""
    cluster = Cluster()
    first, second = cluster.edges["e1"], cluster.edges["e2"]
    first.open("alice")
    first.answer_kicks = False
    begun = cluster.now
    taken = second.open("alice", settle=False)
    while not taken.owner_epoch:
        cluster.step()
    assert 0.2 <= cluster.now - begun < 0.3
    cluster.run(2.2)
    assert len(first.kicked) >= 3
    first.answer_kicks = True
    cluster.run(1.2)
    count = len(first.kicked)
    cluster.run(2.0)
    assert len(first.kicked) == count


def test_old_connection_has_no_effect_after_a_takeover() -> None:
    """P5: acknowledgements and close of a lower owner_epoch are void."""
    cluster = Cluster()
    first, second = cluster.edges["e1"], cluster.edges["e2"]
    old = first.open("alice", "a/#")
    first.publish(message(), old.session >> 48)
    cluster.settle()
    new = second.open("alice")
    assert new.received and new.received[0].dup
    first.acknowledge(old.received[0], 4)
    first.close(old)
    cluster.run(0.5)
    assert cluster.nodes["s1"].core.partition_metrics.queued() == 1
    assert cluster.nodes["s1"].core.partition_metrics.session_counts() == {"connected": 1, "absent": 0}


def test_old_connection_at_the_same_edge_cannot_acknowledge() -> None:
    """P5: both connections are at the session's edge, so only the owner_epoch separates them."""
    cluster, edge = with_edge()
    old = edge.open("alice", "a/#")
    edge.publish(message(), old.session >> 48)
    cluster.settle()
    new = edge.open("alice")
    assert new.received and new.received[0].dup
    edge.acknowledge(old.received[0], 4, connection=old)
    cluster.run(0.5)
    assert cluster.nodes["s1"].core.partition_metrics.queued() == 1
