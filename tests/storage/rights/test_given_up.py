"""A member of a shared group loses its right to it: what it has open goes to other members, not to it and not away."""

import pytest

from storage.messages.abandoned_copies import ENTRIES_AT_ONCE
from tests.storage.rights.test_filters import subscribe
from tests.storage.rights.test_socket_refusals import NOT_AUTHORIZED, NOT_WRITTEN, kept
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster
from tests.storage.test_redispatch import answer, member, message, orders, rows
from wire.messages.batches import OriginKind, PublishMessage
from wire.messages.redispatch import HOPS_MAX, handed_sender, hops_of
from wire.messages.sessions import SessionUnsubscribed, UnsubscribeSession


def revoke(edge: Edge, to: Connection, *names: str, settle: bool = True) -> None:
    """Take filters away from a session, as the edge does whose rules do not grant them."""
    head = edge.head(to.session >> 48)
    edge.ask(UnsubscribeSession(*head, to.session, to.owner_epoch, list(names), True))
    if settle:
        edge.cluster.settle()


def handed(cluster: Cluster) -> list[bytes]:
    """Return the payloads that were told to edges, each once, in order."""
    return list(dict.fromkeys(order.message.payload for order in orders(cluster)))


def count(cluster: Cluster, name: str) -> int:
    return sum(node.core.event_counts().get(name, 0) for node in cluster.nodes.values())


def test_what_is_open_and_what_waits_goes_to_others() -> None:
    """Not what the client may have with QoS 2, nor what is no copy of that group."""
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
    sink = kept(cluster)
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
def test_a_queue_goes_some_at_a_time(crash: bool) -> None:
    """A new primary that finds marked copies gives them to nobody twice."""
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


def test_a_client_that_unsubscribes_keeps_what_was_begun() -> None:
    cluster = Cluster(partitions=1)
    edge, alice = member(cluster)
    edge.publish(message("1"), 0)
    cluster.settle()
    edge.unsubscribe(alice, "$share/g/a")
    cluster.settle()
    assert handed(cluster) == []


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_member_of_a_part_stays_one_and_hands_on_what_it_may_not_have(qos: int, crash: bool) -> None:
    """NIST: protect. From member to member, as often as copies may be handed on; then nobody may have it."""
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


def test_how_often_a_copy_was_handed_on_stands_in_its_origin() -> None:
    """No session has such a number; other origins were never handed on."""
    for partition in (0, 7, 8_191):
        senders = [handed_sender(partition, hops) for hops in range(HOPS_MAX)]
        assert [hops_of(OriginKind.SESSION, sender) for sender in senders] == list(range(1, HOPS_MAX + 1))
        assert {sender >> 48 for sender in senders} == {partition}
        assert hops_of(OriginKind.EDGE, senders[0]) == hops_of(OriginKind.SESSION, senders[-1] - 1) == 0
        assert hops_of(OriginKind.SESSION, partition << 48 | 1) == 0


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("is_member", [False, True])
def test_a_copy_that_the_edge_refuses_goes_to_another_member(is_member: bool, qos: int) -> None:
    """Also before the edge's order comes, or where it never does: who was refused is no member any more."""
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


def test_all_that_waits_for_a_refused_member_goes_on_behind_its_first_refusal() -> None:
    """Of QoS 2 as well, for nothing was written of it; most of the queue follows without a push."""
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


def test_a_repeat_of_qos_2_that_the_edge_refuses_goes_to_nobody() -> None:
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


def test_a_session_that_ends_meanwhile_hands_nothing_on_twice() -> None:
    cluster = Cluster(partitions=1)
    edge, alice = member(cluster, window=1)
    for number in range(3):
        edge.publish(message(str(number)), 0)
    cluster.settle()
    revoke(edge, alice, "$share/g/a")
    edge.close(alice, expiry_s=0)
    assert [order.message.payload for order in orders(cluster)].count(b"2") == 1
    assert handed(cluster) == [b"0", b"1", b"2"]
