"""A shared group's pick and the ordinary copy of one QoS 2 message reach a partition under one origin: both count."""

from storage.messages.origins import origin_of
from tests.storage.storage_cluster import Cluster
from wire.messages.batches import OriginKind, PublishMessage
from wire.messages.sessions import Subscription


def test_pick_and_ordinary_copy_are_remembered_apart() -> None:
    """The second of the two is not a repeat of the first; the same one again is."""
    ordinary = PublishMessage(7, b"t", b"x", 2, origin_kind=OriginKind.SESSION, origin_a=5, origin_b=3)
    picked = PublishMessage(8, b"t", b"x", 2, origin_kind=OriginKind.SESSION, origin_a=5, origin_b=3, share=b"g/t")
    assert origin_of(ordinary, "edge-0", 1)[0] != origin_of(picked, "edge-0", 1)[0]
    assert origin_of(picked, "edge-0", 1) == origin_of(picked, "edge-1", 2)


def test_a_session_s_messages_may_come_out_of_the_order_of_their_counters() -> None:
    """A refused one, whose client did not hear of it, comes again under a new counter before those that followed it."""
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    alice = edge.open("alice")
    edge.subscribe(alice, Subscription("t", 2))
    for counter, payload in ((8, b"new counter"), (7, b"old counter"), (8, b"new counter"), (7, b"old counter")):
        message = PublishMessage(0, b"t", payload, 2, origin_kind=OriginKind.SESSION, origin_a=5, origin_b=counter)
        edge.publish(message, 0)
        cluster.settle()
    assert [push.payload for push in alice.received] == [b"new counter", b"old counter"]
