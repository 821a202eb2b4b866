"""Pending requests: bounded, in order, and printable."""

from storage.hosting.hosted_partition import PartitionPhase
from storage.hosting.pending_until_map import PendingUntilMap
from storage.hosting.pending_until_serving import (
    MESSAGES_BYTES_MAX,
    PendingUntilServing,
    WaitingAck,
    WaitingBytes,
    WaitingCopy,
    WaitingMessage,
    WaitingRequest,
)
from tests.storage.storage_cluster import Cluster
from wire.messages.batches import PublishMessage, PushAck
from wire.messages.hello import TIER_EDGE, TIER_STORAGE, PeerKey
from wire.messages.replication import Append
from wire.messages.retained import ReadRetained

EDGE = PeerKey("e1", TIER_EDGE, 1)
FORMER = PeerKey("s2", TIER_STORAGE, 1)


def waiting_message(since: float, peer: PeerKey = EDGE) -> WaitingMessage:
    return WaitingMessage(since, peer, 3, 7, PublishMessage(1, b"topic", b"payload", 1))


def test_pending_until_serving_is_bounded_and_ordered() -> None:
    """Forwarded messages have a bound of their own, and are separate."""
    room = PendingUntilServing(2, WaitingBytes())
    ack = WaitingAck(2.0, EDGE, PushAck(5, 1, 1, 1, 4, 0))
    assert room.keep(waiting_message(1.0)) and room.keep(ack) and not room.keep(waiting_message(3.0))
    assert room.keep_forwarded(waiting_message(4.0, FORMER))
    assert len(room) == 3
    assert [room.take(), room.take(), room.take()] == [waiting_message(4.0, FORMER), waiting_message(1.0), ack]
    assert room.take() is None and len(room) == 0
    assert (room.take_arrivals(), room.take_arrivals()) == (2, 0)


def test_pending_messages_of_all_partitions_share_a_byte_bound() -> None:
    """Only their number was bounded: ten thousand large ones per loading partition fill the memory."""
    octets = WaitingBytes()
    one, two = PendingUntilServing(9, octets), PendingUntilServing(9, octets)
    large = PublishMessage(1, b"topic", bytes(MESSAGES_BYTES_MAX // 2), 0)
    assert one.keep(WaitingMessage(1.0, EDGE, 3, 7, large))
    assert not two.keep(WaitingMessage(1.0, EDGE, 4, 7, large))
    assert not two.keep_forwarded(WaitingMessage(1.0, FORMER, 4, 7, large))
    assert two.keep(WaitingRequest(3.0, EDGE, ReadRetained(1, 3, 7, "#")))
    assert len(one.leave(0.0)) == 1 and octets.used == 0
    assert two.keep(WaitingMessage(1.0, EDGE, 4, 7, large))
    while two.take() is not None:
        pass
    assert octets.used == 0


def test_only_messages_are_requeued_until_map() -> None:
    """An edge repeats requests by itself, but not a message of a newer map."""
    room = PendingUntilServing(9, WaitingBytes())
    for waiting in (
        waiting_message(1.0),
        waiting_message(2.0),
        WaitingRequest(3.0, EDGE, ReadRetained(1, 3, 7, "#")),
    ):
        room.keep(waiting)
    assert room.leave(2.0) == [waiting_message(2.0)]
    assert not room


def test_pending_request_is_printable() -> None:
    """A pending closure would print no state."""
    text = repr(WaitingRequest(3.0, EDGE, ReadRetained(1, 3, 7, "#")))
    assert "since=3.0" in text and "node='e1'" in text and "ReadRetained(request=1" in text


def test_overdue_pending_requests_are_returned_with_their_successors() -> None:
    """It was dropped without a reply, and its edge does not repeat it."""
    early = PendingUntilMap()
    old, follows = waiting_message(1.0), WaitingRequest(7.0, EDGE, ReadRetained(1, 3, 7, "#"))
    for waiting in (old, follows):
        early.keep(3, waiting)
    early.keep(4, waiting_message(2.0))
    assert early.take_overdue(9.0) == []
    assert early.take_overdue(9.5) == [old, follows]
    assert (len(early), early.partitions()) == (1, [4])


def test_pending_until_map_counts_its_bytes() -> None:
    """After random requests the count is unchanged."""
    early = PendingUntilMap()
    early.keep(3, waiting_message(1.0))
    early.keep(3, WaitingCopy(1.5, "s1", Append(3, 7, 0, 0, 0, 0, 0, [b"row"])))
    early.requeue(4, [waiting_message(0.5)])
    assert (len(early), early.partitions()) == (3, [3, 4])
    early.forget_before(1.2)
    assert early.take(3) == [WaitingCopy(1.5, "s1", Append(3, 7, 0, 0, 0, 0, 0, [b"row"]))]
    assert (len(early), early.partitions()) == (0, [])


def test_partition_phases_are_in_order() -> None:
    """Never back; requests are processed in the last one."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1)
    cluster.settle()
    former = cluster.primary(0).key.node
    cluster.kill(former)
    (heir,) = cluster.nodes
    seen = []
    for _ in range(20_000):
        cluster.step()
        hosted = cluster.nodes[heir].core.partitions.get(0)
        if hosted is not None:
            seen.append(hosted.phase)
            assert hosted.serving == (hosted.phase is PartitionPhase.SERVING)
            if hosted.serving:
                break
    assert seen == sorted(seen) and seen[0] < PartitionPhase.POLLING and seen[-1] is PartitionPhase.SERVING
