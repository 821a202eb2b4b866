"""Copies of a durable shared group member whose session ends: recorded with the end, redispatched until confirmed."""

from typing import Any

import pytest

from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster, with_edge
from wire.messages.batches import PublishMessage
from wire.messages.control import encode_control
from wire.messages.frames import FrameKind
from wire.messages.redispatch import RedispatchOrder, RedispatchReply, SharePick
from wire.messages.sessions import SessionSubscription

SHARE = b"g/a"


def message(payload: str, qos: int = 1, **more: Any) -> PublishMessage:
    return PublishMessage(0, b"a", payload.encode(), qos, share=SHARE, **more)


def member(cluster: Cluster, *, window: int = 64, qos: int = 2) -> tuple[Edge, Connection]:
    edge = cluster.edges["e1"]
    alice = edge.open("alice", receive_maximum=window)
    edge.subscribe(alice, SessionSubscription("$share/g/a", qos, identifier=7))
    return edge, alice


def orders(cluster: Cluster) -> list[RedispatchOrder]:
    return [order for edge in cluster.edges.values() for order in edge.answers(RedispatchOrder)]


def answer(cluster: Cluster, number: int, pick: SharePick | None = None, edge: str = "e1") -> None:
    said = RedispatchReply(0, 0, number, pick)
    cluster.send(cluster.edges[edge].key, cluster.primary(0).key.node, FrameKind.CONTROL, encode_control(said))
    cluster.settle()


def rows(cluster: Cluster, node: str = "s1") -> list[bytes]:
    return [key for key in cluster.disks[node].records if key[2:3] in (b"h", b"q", b"b")]


def test_session_end_keeps_redispatchable_copies() -> None:
    """QoS 1, and unsent QoS 2; not acknowledged, refused or expired entries, nor those without a group."""
    cluster = Cluster(partitions=1)
    edge, alice = member(cluster, window=4)
    edge.subscribe(alice, "other")
    for payload, qos in (("acked", 1), ("refused", 1), ("sent", 1), ("twice", 2)):
        edge.publish(message(payload, qos), 0)
    cluster.settle()
    acked, refused, sent, _ = alice.received
    assert sent.properties == b"\x0b\x07"
    edge.publish(PublishMessage(0, b"other", b"own", 1), 0)  # without a group
    edge.acknowledge(acked, 4)
    edge.acknowledge(refused, 4, 0x97)
    cluster.settle()
    edge.close(alice)
    for payload, qos, expiry_s in (("waits", 1, 0xFFFFFFFF), ("waits 2", 2, 100), ("expired", 1, 1)):
        edge.publish(message(payload, qos, expiry_s=expiry_s), 0)
    cluster.run(3.0)
    edge.open("alice", clean_start=True)
    found = [(order.message.payload, order.message.qos, order.message.properties) for order in orders(cluster)]
    assert found == [(b"sent", 1, b""), (b"waits", 1, b""), (b"waits 2", 2, b"")]
    assert orders(cluster)[2].message.expiry_s in (96, 97, 98)
    assert cluster.nodes["s1"].core.event_counts()["dropped_expired"] == 1
    for order in orders(cluster)[:3]:
        answer(cluster, order.number)
    assert rows(cluster) == []


def test_pick_is_recorded_before_use_and_survives_restarts() -> None:
    """The first pick is kept, a higher attempt replaces it; a new primary uses the recorded one."""
    cluster = Cluster(partitions=1)
    edge, alice = member(cluster)
    edge.close(alice)
    edge.publish(message("1", 2), 0)
    cluster.settle()
    edge.open("alice", clean_start=True, expiry_s=0)
    (order,) = orders(cluster)
    first, second, third = SharePick(SHARE, 3), SharePick(SHARE, 4), SharePick(SHARE, 5, attempt=1)
    answer(cluster, order.number, first)
    answer(cluster, order.number, second)
    assert [again.pick for again in orders(cluster)[1:]] == [first, first]
    answer(cluster, order.number, third)
    edge.controls.clear()
    cluster.crash_all()
    cluster.run(2.0)
    again = orders(cluster)
    assert len(again) == 1
    assert all((found.number, found.pick) == (order.number, third) for found in again)
    assert all(found.message.payload == b"1" for found in again)
    answer(cluster, order.number)
    edge.controls.clear()
    cluster.crash_all()
    cluster.run(2.0)
    assert orders(cluster) == []
    assert rows(cluster) == []


@pytest.mark.parametrize("how", ["expiry", "clean start", "ends with its connection"])
def test_every_kind_of_session_end_redispatches(how: str) -> None:
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice", "$share/g/a", expiry_s=5)
    edge.publish(message("1"), 0)
    cluster.settle()
    if how == "clean start":
        edge.open("alice", clean_start=True)
    else:
        edge.close(alice, expiry_s=0 if how.startswith("ends") else -1)
        cluster.run(7.0)
    assert {order.message.payload for order in orders(cluster)} == {b"1"}


def test_unsubscribed_member_keeps_its_queued_copies() -> None:
    """Section 3.10.4: buffered messages may be delivered; they go to the group when the session ends."""
    cluster = Cluster(partitions=1)
    edge, alice = member(cluster, window=1)
    for payload in ("1", "2"):
        edge.publish(message(payload), 0)
    cluster.settle()
    edge.unsubscribe(alice, "$share/g/a")
    cluster.settle()
    assert orders(cluster) == []
    edge.acknowledge(alice.received[0], 4)
    cluster.settle()
    assert [push.payload for push in alice.received] == [b"1", b"2"]
    edge.close(alice, expiry_s=0)
    assert [order.message.payload for order in orders(cluster)] == [b"2"]


def test_replica_has_copies_to_redispatch() -> None:
    """The primary dies after the end of the session."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1)
    edge, alice = member(cluster)
    edge.publish(message("1"), 0)
    edge.publish(PublishMessage(0, b"a", b"x" * 300_000, 1, share=SHARE), 0)
    cluster.settle()
    edge.close(alice, expiry_s=0)
    numbers = sorted({order.number for order in orders(cluster)})
    assert len(numbers) == 2
    for one in cluster.edges.values():
        one.controls.clear()
    cluster.kill(cluster.primary(0).key.node)
    cluster.run(5.0)
    assert sorted({order.number for order in orders(cluster)}) == numbers
    assert {len(order.message.payload) for order in orders(cluster)} == {1, 300_000}


def test_redispatch_is_ordered_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.messages.redispatch.MESSAGES_MAX", 50)
    cluster = Cluster(partitions=1)
    edge, alice = member(cluster)
    edge.close(alice)
    for number in range(60):
        edge.publish(message(str(number)), 0)
    cluster.settle()
    edge.open("alice", clean_start=True, expiry_s=0)
    assert len(orders(cluster)) == 32
    done = 0
    while done < len(orders(cluster)):
        answer(cluster, orders(cluster)[done].number)
        done += 1
    payloads = dict.fromkeys(order.message.payload for order in orders(cluster))
    assert list(payloads) == [b"%d" % number for number in range(50)]
    assert cluster.nodes["s1"].core.event_counts()["shares_dropped_full"] == 10
    assert rows(cluster) == []
