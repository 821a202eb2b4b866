"""Retained messages and reads of them, in order with live messages."""

import pytest

from tests.storage.requests import read, retained
from tests.storage.scripted_edge import Connection
from tests.storage.storage_cluster import Cluster, with_edge, with_settings
from wire.messages.batches import PublishMessage
from wire.messages.retained import DeliverRetained, RetainedDelivered, RetainedMessage
from wire.messages.sessions import SessionSubscription, SubscribeSession


def test_retained_store_keeps_the_newest_and_clears_on_empty_payload() -> None:
    """Read by wildcard, page by page, also after a crash and at 1 MiB."""
    cluster, edge = with_edge(partitions=1)
    for number in range(7):
        edge.publish(retained(f"t/{number}", f"old {number}"), 0)
        edge.publish(retained(f"t/{number}", f"new {number}"), 0)
    edge.publish(retained("t/3", ""), 0)
    edge.publish(retained("t/big", "x" * (1 << 20)), 0)
    cluster.settle()
    for _ in range(2):
        found = {message.topic: message.payload for message in read(cluster, "t/#", limit=2)}
        assert found.pop("t/big") == b"x" * (1 << 20)
        assert found == {f"t/{n}": f"new {n}".encode() for n in range(7) if n != 3}
        cluster.crash_all()
    edge.publish(retained("t/big", ""), 0)
    cluster.settle()
    assert not any(key[2:3] == b"b" for key in cluster.disks["s1"].records)


def test_retained_store_expires_messages_and_is_bounded() -> None:
    """The remaining expiry is sent; above the bound a new topic is refused, a known one is not."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(retained_messages_max=2))
    edge.publish(retained("t/1", "a", expiry_s=5), 0)
    edge.publish(retained("t/2", "b"), 0)
    refused = edge.publish(retained("t/3", "c"), 0)
    known = edge.publish(retained("t/2", "d"), 0)
    cluster.settle()
    assert edge.acked[refused] == 0x97 and edge.acked[known] == 0
    assert 4 <= read(cluster, "t/1")[0].expiry_s <= 5
    cluster.run(6.0)
    assert [message.topic for message in read(cluster, "t/#")] == ["t/2"]


def test_known_topic_cannot_grow_beyond_the_byte_bound() -> None:
    """A bound of 10 bytes: a replacement counts its growth; a smaller replacement is always accepted."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(retained_bytes_max=10))
    sizes = {"t/1": 4, "t/2": 4}
    for topic, size, code in (("t/1", 7, 0x97), ("t/1", 6, 0), ("t/2", 5, 0x97), ("t/2", 4, 0), ("t/1", 1, 0)):
        for kept, octets in sizes.items():
            edge.publish(retained(kept, "x" * octets), 0)
        cluster.settle()
        answered = edge.publish(retained(topic, "y" * size), 0)
        cluster.settle()
        assert edge.acked[answered] == code, (topic, size)
        sizes[topic] = size if code == 0 else sizes[topic]
    assert cluster.primary(0).core.event_counts()["refused_retained_full"] == 2


def test_retained_payload_is_bounded() -> None:
    """A larger one is refused, and the previous value stays; a live message has its own bound."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(retained_payload_max=5))
    answers = [edge.publish(retained("t", text), 0) for text in ("12345", "123456", "")]
    cluster.settle()
    assert [edge.acked[answer] for answer in answers] == [0, 0x97, 0]
    assert read(cluster, "t") == []
    assert cluster.primary(0).core.event_counts()["refused_retained_payload"] == 1


def test_s14_retained_and_live_copy_are_delivered_once() -> None:
    """During a retained read live messages are held; one message is delivered once, in either order."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice")
    edge.publish(retained("a/1", "r1", qos=2), 0)
    edge.publish(retained("a/2", "r2", qos=2), 0)
    cluster.settle()
    request = SessionSubscription("a/#", 2, retain_handling=0)
    cluster_request = next(edge.requests)
    edge.ask(SubscribeSession(cluster_request, 0, edge.epoch(0), alice.session, alice.owner_epoch, [request]))
    cluster.settle()
    edge.publish(retained("a/2", "r3", qos=2), 0)
    cluster.settle()
    assert not alice.received
    copies = [
        RetainedMessage("a/1", b"r1", 2, b"", 0xFFFFFFFF, 0, 1, 1),
        RetainedMessage("a/2", b"r3", 2, b"", 0xFFFFFFFF, 0, 1, 3),
    ]
    number = next(edge.requests)
    edge.ask(DeliverRetained(number, 0, edge.epoch(0), alice.session, alice.owner_epoch, copies, True, cluster_request))
    cluster.settle()
    assert edge.answers(RetainedDelivered)
    assert sorted(push.payload for push in alice.received) == [b"r1", b"r3"]


def test_timer_of_an_earlier_read_does_not_end_a_later_hold() -> None:
    """The timer of a finished read used to end the hold of the next one (chaos F20 seed 200)."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice")
    deliver(cluster, alice, begin_read(cluster, alice))
    cluster.run(4.0)
    begin_read(cluster, alice)
    cluster.run(2.0)
    edge.publish(PublishMessage(0, b"a/b", b"m", 1), 0)
    cluster.settle()
    assert not alice.received
    cluster.run(4.0)
    assert [push.payload for push in alice.received] == [b"m"]


def test_unfinished_read_holds_five_seconds_despite_later_reads() -> None:
    """Each later read that ended used to extend its deadline (chaos F20 seed 200)."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice")
    begin_read(cluster, alice)
    edge.publish(PublishMessage(0, b"a/b", b"m", 1), 0)
    for _ in range(6):
        cluster.run(1.0)
        deliver(cluster, alice, begin_read(cluster, alice))
    assert [push.payload for push in alice.received] == [b"m"]


def test_retained_copy_does_not_follow_a_newer_live_message() -> None:
    """A live message may arrive before it is retained: a read then finds the older one (chaos F20 seed 200)."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice")
    deliver(cluster, alice, begin_read(cluster, alice))
    edge.publish(retained("a/1", "new"), 0)
    cluster.settle()
    deliver(cluster, alice, begin_read(cluster, alice), ("a/1", "old", 1))
    assert [push.payload for push in alice.received] == [b"new"]
    edge.unsubscribe(alice, "a/#")
    cluster.settle()
    deliver(cluster, alice, begin_read(cluster, alice), ("a/1", "old", 1))
    assert [push.payload for push in alice.received] == [b"new", b"old"]  # the subscription of the live one has ended


def test_s24_live_messages_are_held_at_most_five_seconds() -> None:
    """A retained read that never ends does not hold them indefinitely."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice")
    edge.ask(SubscribeSession(*edge.head(0), alice.session, alice.owner_epoch, [SessionSubscription("a/#", 1)]))
    cluster.settle()
    edge.publish(PublishMessage(0, b"a/b", b"m", 1), 0)
    cluster.run(4.0)
    assert not alice.received
    cluster.run(1.5)
    assert [push.payload for push in alice.received] == [b"m"]


def begin_read(cluster: Cluster, alice: Connection, qos: int = 1) -> int:
    """Subscribe to a/#, which holds live messages; return the number of the read."""
    edge = cluster.edges["e1"]
    read = next(edge.requests)
    edge.ask(
        SubscribeSession(read, 0, edge.epoch(0), alice.session, alice.owner_epoch, [SessionSubscription("a/#", qos)])
    )
    cluster.settle()
    return read


def deliver(cluster: Cluster, alice: Connection, read: int, *values: tuple[str, str, int], done: bool = True) -> bool:
    """Deliver copies (topic, payload, QoS) for a read; return whether it has to restart."""
    edge = cluster.edges["e1"]
    copies = [RetainedMessage(topic, text.encode(), qos, b"", 0xFFFFFFFF, 0, 1, 99) for topic, text, qos in values]
    number = next(edge.requests)
    edge.ask(DeliverRetained(number, 0, edge.epoch(0), alice.session, alice.owner_epoch, copies, done, read or number))
    cluster.settle()
    (answer,) = [one for one in edge.answers(RetainedDelivered) if one.request == number]
    return bool(answer.again)


def payloads(alice: Connection) -> list[bytes]:
    return [push.payload for push in alice.received]


def test_deadline_of_an_older_read_does_not_end_a_newer_hold() -> None:
    """Simulation seed 4009: the timer of a finished read sent a live value before the older retained one."""
    cluster = Cluster(partitions=1)
    alice = cluster.edges["e1"].open("alice")
    deliver(cluster, alice, begin_read(cluster, alice))
    cluster.run(4.9)
    read = begin_read(cluster, alice)
    cluster.run(0.5)  # the first one's five seconds have passed
    cluster.edges["e1"].publish(retained("a/b", "new"), 0)
    cluster.settle()
    assert payloads(alice) == []
    deliver(cluster, alice, read, ("a/b", "old", 1), ("a/c", "other", 1))
    assert payloads(alice) == [b"new", b"other"]


def test_retained_copy_after_the_hold_is_not_older_than_live_messages() -> None:
    """A read may take longer than the hold of live messages."""
    cluster = Cluster(partitions=1)
    alice = cluster.edges["e1"].open("alice")
    read = begin_read(cluster, alice)
    cluster.run(5.5)
    cluster.edges["e1"].publish(retained("a/b", "new"), 0)
    cluster.settle()
    deliver(cluster, alice, read, ("a/b", "old", 1), ("a/c", "other", 1))
    assert payloads(alice) == [b"new", b"other"]


def test_read_of_a_former_primary_restarts() -> None:
    """The new one does not know earlier live messages; its hold begins with the restart."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice")
    read = begin_read(cluster, alice)
    cluster.crash_all()
    edge.publish(retained("a/b", "new"), 0)
    cluster.settle()
    assert deliver(cluster, alice, read, ("a/b", "old", 1))
    assert not deliver(cluster, alice, read)  # no copies: no restart
    assert not deliver(cluster, alice, 0, done=False)  # a beginning
    assert payloads(alice) == [b"new"]
    edge.publish(retained("a/b", "newer"), 0)
    cluster.settle()
    assert payloads(alice) == [b"new"]


def test_queued_copy_does_not_follow_a_newer_qos_0_value() -> None:
    """QoS 0 does not wait for the window: a queued older copy is dropped, and counted."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(outbound_window_max=1))
    alice = edge.open("alice")
    read = begin_read(cluster, alice)
    deliver(cluster, alice, read, ("a/x", "first", 1), ("a/b", "old", 1), ("a/c", "other", 1))
    edge.publish(retained("a/b", "new", qos=0), 0)
    cluster.settle()
    for _ in range(3):
        for push in list(alice.outbound.values()):
            edge.acknowledge(push, 4)
        cluster.settle()
    assert payloads(alice) == [b"first", b"new", b"other"]
    assert cluster.nodes["s1"].core.event_counts()["retained_overtaken"] == 1


@pytest.mark.parametrize("crash", [False, True])
def test_queued_copies_do_not_follow_a_newer_qos_0_value(crash: bool) -> None:
    """Simulation seeds 5001, 5006: of several copies of a topic only the last was dropped; a crash forgot it too."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(outbound_window_max=1))
    alice = edge.open("alice")
    for text in ("first", "old", "older", "oldest"):
        deliver(cluster, alice, begin_read(cluster, alice), ("a/b", text, 1), ("a/c", text, 1))
    deliver(cluster, alice, begin_read(cluster, alice, qos=0))
    edge.publish(retained("a/b", "new", qos=0), 0)
    cluster.settle()
    assert payloads(alice) == [b"first", b"new"]
    if crash:
        cluster.crash_all()
        alice = edge.open("alice", clean_start=False)
    for _ in range(12):
        for push in list(alice.outbound.values()):
            edge.acknowledge(push, 4)
        cluster.settle()
    assert [push.payload for push in alice.received if push.topic == b"a/b" and push.qos and not push.dup] in (
        [b"first"],
        [],
    )
    assert [push.payload for push in alice.received if push.topic == b"a/c"][-3:] == [b"old", b"older", b"oldest"]


def copies_for(cluster: Cluster, alice: Connection, read: int, *topics: str, done: bool = False) -> int:
    """Deliver retained copies at QoS 1; return how many of them the partition queued."""
    edge = cluster.edges["e1"]
    number = next(edge.requests)
    messages = [RetainedMessage(topic, b"kept", 1, b"", 0xFFFFFFFF, 0, 1, at) for at, topic in enumerate(topics, 1_000)]
    edge.ask(DeliverRetained(number, 0, edge.epoch(0), alice.session, alice.owner_epoch, messages, done, read))
    cluster.settle()
    (answer,) = [one for one in edge.answers(RetainedDelivered) if one.request == number]
    return int(answer.taken)


def test_copies_beyond_the_queue_share_wait_without_drops() -> None:
    """A queue accepts copies up to three quarters of its bound, and reports the number.

    The rest is for live messages.
    """
    cluster = Cluster(partitions=1, settings=with_settings(queue_messages_max=40, outbound_window_max=5))
    alice = cluster.edges["e1"].open("alice")
    read = begin_read(cluster, alice)
    topics = [f"a/{number:03}" for number in range(100)]
    taken = copies_for(cluster, alice, read, *topics)
    assert taken == 30
    assert copies_for(cluster, alice, read, *topics[taken:]) == 0
    edge = cluster.edges["e1"]
    for number in range(10):
        edge.publish(PublishMessage(0, b"a/live", b"%d" % number, 1), 0)
    cluster.settle()
    for _ in range(200):
        for push in list(alice.outbound.values()):
            edge.acknowledge(push, 4)
        cluster.settle()
        if taken < 100:
            taken += copies_for(cluster, alice, read, *topics[taken:])
    assert copies_for(cluster, alice, read, done=True) == 0
    assert cluster.primary(0).core.event_counts().get("dropped_queue_full", 0) == 0
    got = [push.topic.decode() for push in alice.received]
    assert [topic for topic in got if topic != "a/live"] == topics and got.count("a/live") == 10


def test_repeated_delivery_request_gets_the_same_answer() -> None:
    """A link broke before the reply arrived: its copies are not queued twice, and the rest still waits."""
    cluster = Cluster(partitions=1, settings=with_settings(queue_messages_max=8))
    alice = cluster.edges["e1"].open("alice")
    edge = cluster.edges["e1"]
    read, number = begin_read(cluster, alice), next(edge.requests)
    messages = [RetainedMessage(f"a/{one}", b"kept", 1, b"", 0xFFFFFFFF, 0, 1, one) for one in range(1, 10)]
    for _ in range(2):
        edge.ask(DeliverRetained(number, 0, edge.epoch(0), alice.session, alice.owner_epoch, messages, False, read))
        cluster.settle()
    assert [one.taken for one in edge.answers(RetainedDelivered) if one.request == number] == [6, 6]
    assert len(alice.received) == 6


def test_hold_ends_before_the_queue_is_full() -> None:
    """Live messages are held during a long read; none of them is dropped for that."""
    cluster = Cluster(partitions=1, settings=with_settings(queue_messages_max=40))
    alice = cluster.edges["e1"].open("alice")
    begin_read(cluster, alice)
    edge = cluster.edges["e1"]
    for number in range(60):
        edge.publish(PublishMessage(0, b"a/live", b"%d" % number, 1), 0)
        cluster.settle()
        for push in list(alice.outbound.values()):
            edge.acknowledge(push, 4)
    cluster.settle()
    assert [push.payload for push in alice.received] == [b"%d" % number for number in range(60)]
    counts = cluster.primary(0).core.event_counts()
    assert counts["holds_cut_full"] == 1 and counts.get("dropped_queue_full", 0) == 0
