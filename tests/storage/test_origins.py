"""Origins of messages: each counts once, in any order, within a window; picks and ordinary copies are separate."""

from storage.messages.origins import origin_of
from storage.messages.publishers import PUBLISHERS_MAX, Publishers
from tests.storage.storage_cluster import with_edge
from wire.messages.batches import OriginKind, PublishMessage
from wire.messages.origin_window import OriginWindow
from wire.messages.sessions import SessionSubscription


def test_pick_is_new_once_in_any_order() -> None:
    """One that arrives after later ones is no repeat; one below the window is."""
    picked = OriginWindow(1_024)
    for counter in (5, 9, 6, 7, 1_000):
        assert not picked.has(counter)
        picked.add(counter)
        assert picked.has(counter)
    assert not picked.has(8)
    assert not picked.has(1_001)
    picked.add(5_000)
    assert picked.has(1_000)
    assert picked.has(8)


def test_pick_window_survives_the_store() -> None:
    """The row restores the same window, and is small."""
    picked = OriginWindow(64)
    for counter in (3, 40, 70):
        picked.add(counter)
    again = OriginWindow(64, picked.value())
    assert [counter for counter in range(1, 100) if again.has(counter)] == [
        counter for counter in range(1, 100) if picked.has(counter)
    ]
    assert len(picked.value()) <= 8 + 9


def test_a_lower_owner_epoch_is_superseded_for_four_leases() -> None:
    """After that no message of the older connection can be in flight.

    Messages without a session are never superseded.
    """
    publishers = Publishers()
    assert not publishers.observe(7, 2, 100.0, 2.0)
    assert publishers.observe(7, 1, 107.9, 2.0)
    assert not publishers.observe(7, 2, 107.9, 2.0)
    assert not publishers.observe(0, 1, 108.0, 2.0)
    assert not publishers.observe(7, 1, 116.0, 2.0)


def test_publishers_are_bounded() -> None:
    """The one that was silent longest is forgotten first."""
    publishers = Publishers()
    for session in range(1, PUBLISHERS_MAX + 10):
        publishers.observe(session, 1, 100.0, 2.0)
    assert len(publishers) <= PUBLISHERS_MAX


def test_messages_in_flight_after_a_refused_one_are_refused() -> None:
    """Simulation seeds 10011 and 10030: it was accepted, and the refused message came again after it."""
    publishers = Publishers()
    assert not publishers.refuses(100.0, 2.0)
    publishers.refused(7, 2, 100.0)
    publishers.refused(0, 1, 100.0)  # no session: no retransmission
    assert publishers.settle_refused(7, 2, 107.9, 2.0)
    assert not publishers.settle_refused(8, 2, 100.9, 2.0)
    assert not publishers.settle_refused(0, 1, 100.9, 2.0)
    assert publishers.refuses(107.9, 2.0)
    assert not publishers.settle_refused(7, 3, 100.9, 2.0)  # its next connection
    assert not publishers.refuses(100.9, 2.0)
    publishers.refused(7, 3, 101.0)
    assert not publishers.settle_refused(7, 3, 109.0, 2.0)


def test_refused_publisher_without_return_is_forgotten() -> None:
    """Until it published again, its partition did not use the fast path."""
    publishers = Publishers()
    publishers.refused(7, 1, 100.0)
    publishers.refused(8, 1, 101.0)
    publishers.refused(7, 2, 104.0)
    assert publishers.refuses(108.9, 2.0)
    assert publishers.refuses(111.9, 2.0)  # 7 was refused again
    assert not publishers.refuses(112.0, 2.0)
    assert not publishers.settle_refused(7, 2, 112.0, 2.0)


def test_pick_and_ordinary_copy_have_separate_origins() -> None:
    """The second of the two is not a repeat of the first; the same one again is."""
    ordinary = PublishMessage(7, b"t", b"x", 2, origin_kind=OriginKind.SESSION, origin_a=5, origin_b=3)
    picked = PublishMessage(8, b"t", b"x", 2, origin_kind=OriginKind.SESSION, origin_a=5, origin_b=3, share=b"g/t")
    assert origin_of(ordinary, "edge-0", 1)[0] != origin_of(picked, "edge-0", 1)[0]
    assert origin_of(picked, "edge-0", 1) == origin_of(picked, "edge-1", 2)


def test_session_messages_may_arrive_out_of_counter_order() -> None:
    """A refused message whose client did not get the refusal comes again under a new counter before its successors."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice")
    edge.subscribe(alice, SessionSubscription("t", 2))
    for counter, payload in ((8, b"new counter"), (7, b"old counter"), (8, b"new counter"), (7, b"old counter")):
        message = PublishMessage(0, b"t", payload, 2, origin_kind=OriginKind.SESSION, origin_a=5, origin_b=counter)
        edge.publish(message, 0)
        cluster.settle()
    assert [push.payload for push in alice.received] == [b"new counter", b"old counter"]
