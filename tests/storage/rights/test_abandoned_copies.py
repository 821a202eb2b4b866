"""A shared group's member that loses its right: its open copies go to other members and are not lost."""

import pytest

from storage.messages.abandoned_copies import ENTRIES_AT_ONCE
from tests.storage.rights.test_filters import subscribe
from tests.storage.rights.test_socket_refusals import NOT_AUTHORIZED, NOT_WRITTEN, record_audit
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster
from tests.storage.test_redispatch import answer, member, message, orders, rows
from wire.messages.batches import OriginKind, PublishMessage
from wire.messages.redispatch import HOPS_MAX, handed_sender, hops_of
from wire.messages.sessions import SessionUnsubscribed, UnsubscribeSession


def revoke(edge: Edge, to: Connection, *names: str, settle: bool = True) -> None:
    """Revoke filters of a session, as an edge whose rules do not grant them."""
    head = edge.head(to.session >> 48)
    edge.ask(UnsubscribeSession(*head, to.session, to.owner_epoch, list(names), True))
    if settle:
        edge.cluster.settle()


def handed(cluster: Cluster) -> list[bytes]:
    """Return the payloads of the redispatch orders to edges, each once, in order."""
    return list(dict.fromkeys(order.message.payload for order in orders(cluster)))


def count(cluster: Cluster, name: str) -> int:
    return sum(node.core.event_counts().get(name, 0) for node in cluster.nodes.values())


def test_revoked_member_in_flight_and_queued_copies_are_redispatched() -> None:
    """Except QoS 2 copies that the client may have, and entries of other groups."""
    cluster = Cluster(partitions=1)
    edge, alice = member(cluster, window=3)
    edge.subscribe(alice, "other", "$share/h/a")
    for payload, qos in (("sent", 1), ("twice", 2)):
        edge.publish(message(payload, qos), 0)
    edge.publish(PublishMessage(0, b"other", b"own", 1), 0)
    for payload, qos in (("waits", 1), ("waits 2", 2)):
        edge.publish(message(payload, qos), 0)
    edge.publish(PublishMessage(0, b"a", b"of h", 1, share=b"h/a"), 0)
    edge.publish(PublishMessage(0, b"other", b"own 2", 1), 0)
    cluster.settle()
    sink = record_audit(cluster)
    revoke(edge, alice, "$share/g/a")
    assert edge.answers(SessionUnsubscribed)[-1].reason_codes == [0]
    assert handed(cluster) == [b"sent", b"waits", b"waits 2"] and count(cluster, "shares_revoked") == 3
    assert [reason for event, _, reason in sink.dropped if event == "dropped"] == ["handed to another member"] * 3
    for push in list(alice.received):
        edge.acknowledge(push, 4 if push.qos == 1 else 5)
    cluster.settle()
    edge.acknowledge(next(push for push in alice.received if push.pubrel), 7)
    cluster.settle()
    for push in [push for push in alice.received if push.qos == 1]:
        edge.acknowledge(push, 4)
    cluster.run(1.0)
    assert [push.payload for push in alice.received if not push.pubrel] == [
        b"sent",
        b"twice",
        b"own",
        b"of h",
        b"own 2",
    ]
    for order in orders(cluster):
        answer(cluster, order.number)
    (session,) = cluster.primary(0).core.partitions[0].partition.sessions.values()
    assert (session.queued, session.queue_bytes) == (0, 0) and sink.delivered
    cluster.run(2.0)
    assert rows(cluster) == []


@pytest.mark.parametrize("crash", [False, True])
def test_revoked_member_queue_is_redispatched_in_slices(crash: bool) -> None:
    """A new primary that finds marked copies does not redispatch them again."""
    cluster = Cluster(partitions=1)
    edge, alice = member(cluster, window=1)
    numbers = [str(number) for number in range(3 * ENTRIES_AT_ONCE)]
    for number in numbers:
        edge.publish(message(number), 0)
    cluster.settle()
    revoke(edge, alice, "$share/g/a")
    if crash:
        cluster.crash_all()
    told: dict[int, bytes] = {}
    while fresh := {order.number: order.message.payload for order in orders(cluster) if order.number not in told}:
        told |= fresh
        for order in fresh:
            answer(cluster, order)
    assert [payload.decode() for payload in told.values()] == numbers
    cluster.run(3.0)
    (session,) = cluster.primary(0).core.partitions[0].partition.sessions.values()
    assert session.queued == 0 and len(alice.received) == 1


def test_unsubscribe_keeps_deliveries_in_progress() -> None:
    cluster = Cluster(partitions=1)
    edge, alice = member(cluster)
    edge.publish(message("1"), 0)
    cluster.settle()
    edge.unsubscribe(alice, "$share/g/a")
    cluster.settle()
    assert handed(cluster) == []


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_partially_granted_member_stays_and_redispatches_refused_copies(qos: int, crash: bool) -> None:
    """Copies go from member to member up to the hop limit, and are then dropped."""
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    alice = edge.open("alice")
    subscribe(edge, alice, "$share/g/a", judged=1, partial=(0,))
    for hops in range(HOPS_MAX + 1):
        sender = handed_sender(0, hops - 1) if hops else 0
        origin = {"origin_kind": OriginKind.SESSION, "origin_a": sender, "origin_b": 7} if hops else {}
        edge.publish(message(f"{hops}", qos, **origin), 0)
        cluster.settle()
        edge.acknowledge(alice.received[-1], NOT_WRITTEN, NOT_AUTHORIZED)
        cluster.settle()
        (session,) = cluster.primary(0).core.partitions[0].partition.sessions.values()
        assert set(session.subscriptions) == {"$share/g/a"} and session.queued == 0
    if crash:
        cluster.crash_all()
        cluster.run(2.0)
    told = {order.message.payload: order.hops for order in orders(cluster)}
    assert told == {b"%d" % hops: hops for hops in range(HOPS_MAX)}
    assert crash or (count(cluster, "shares_revoked"), count(cluster, "pushes_refused")) == (HOPS_MAX, 1)
    assert crash or not count(cluster, "groups_taken")


def test_origin_contains_the_number_of_redispatches() -> None:
    """No session number has hops; other origins have none."""
    for partition in (0, 7, 8_191):
        senders = [handed_sender(partition, hops) for hops in range(HOPS_MAX)]
        assert [hops_of(OriginKind.SESSION, sender) for sender in senders] == list(range(1, HOPS_MAX + 1))
        assert {sender >> 48 for sender in senders} == {partition}
        assert hops_of(OriginKind.EDGE, senders[0]) == hops_of(OriginKind.SESSION, senders[-1] - 1) == 0
        assert hops_of(OriginKind.SESSION, partition << 48 | 1) == 0


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("is_member", [False, True])
def test_copy_refused_by_the_edge_is_redispatched(is_member: bool, qos: int) -> None:
    """Also before the edge's order arrives, or without one: the refused member is removed."""
    cluster = Cluster(partitions=1)
    edge, alice = member(cluster)
    edge.subscribe(alice, "a")
    edge.publish(message("1", qos), 0)
    cluster.settle()
    if not is_member:
        edge.unsubscribe(alice, "$share/g/a")
        cluster.settle()
    edge.acknowledge(alice.received[0], NOT_WRITTEN, NOT_AUTHORIZED)
    cluster.settle()
    (session,) = cluster.primary(0).core.partitions[0].partition.sessions.values()
    assert handed(cluster) == [b"1"] and set(session.subscriptions) == {"a"}
    assert (count(cluster, "shares_revoked"), count(cluster, "pushes_refused")) == (1, 0)
    assert count(cluster, "groups_taken") == is_member


def test_first_refusal_redispatches_the_whole_queue_of_the_member() -> None:
    """QoS 2 copies too, because they were not written; most of the queue follows without a push."""
    cluster = Cluster(partitions=1)
    edge, alice = member(cluster, window=2)
    for number in range(8):
        edge.publish(message(str(number), 1 + number % 2), 0)
    cluster.settle()
    refused = 0
    while refused < len(alice.received):
        edge.acknowledge(alice.received[refused], NOT_WRITTEN, NOT_AUTHORIZED)
        refused += 1
        cluster.settle()
    told: dict[int, bytes] = {}
    while fresh := {order.number: order.message.payload for order in orders(cluster) if order.number not in told}:
        told |= fresh
        for order in fresh:
            answer(cluster, order)
    assert sorted(told.values()) == [str(number).encode() for number in range(8)]
    assert refused < 8


def test_refused_qos_2_repeat_is_not_redispatched() -> None:
    """The client may have it from an earlier connection [MQTT-4.8.2-5]."""
    cluster = Cluster(partitions=1)
    edge, alice = member(cluster)
    edge.publish(message("1", 2), 0)
    cluster.settle()
    edge.close(alice)
    again = edge.open("alice")
    cluster.settle()
    edge.acknowledge(again.received[0], NOT_WRITTEN, NOT_AUTHORIZED)
    cluster.settle()
    assert handed(cluster) == [] and count(cluster, "pushes_refused") == 1


def test_session_end_during_redispatch_sends_no_copy_twice() -> None:
    cluster = Cluster(partitions=1)
    edge, alice = member(cluster, window=1)
    for number in range(3):
        edge.publish(message(str(number)), 0)
    cluster.settle()
    revoke(edge, alice, "$share/g/a")
    edge.close(alice, expiry_s=0)
    assert [order.message.payload for order in orders(cluster)].count(b"2") == 1
    assert handed(cluster) == [b"0", b"1", b"2"]
