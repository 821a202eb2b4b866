"""Wills by every rule, and their state after a crash at any time."""

import pytest

from tests.storage.requests import WILL, fired
from tests.storage.storage_cluster import Cluster, with_edge, with_settings
from wire.messages.batches import OriginKind, PublishMessage
from wire.messages.redispatch import RedispatchOrder
from wire.messages.wills import SessionWill, WillFired

DELAYED = SessionWill("w", b"gone", 1, delay_s=3)


@pytest.mark.parametrize(
    ("expiry_s", "will", "clean", "after_s", "expected"),
    [
        (0, WILL, False, 0.5, 1),  # the connection of an ephemeral session broke
        (0, WILL, True, 5.0, 0),  # DISCONNECT 0x00 [MQTT-3.14.4-3]
        (60, WILL, False, 0.5, 1),
        (60, DELAYED, False, 2.0, 0),
        (60, DELAYED, False, 4.0, 1),
        (60, DELAYED, True, 6.0, 0),
        (0, DELAYED, False, 0.5, 1),  # the session ends with the connection: the delay ends with it [MQTT-3.1.3-9]
        (1, DELAYED, False, 2.0, 1),  # likewise, by its expiry
    ],
)
@pytest.mark.parametrize("crash", [False, True])
def test_will_fires_once_or_not_at_all(
    expiry_s: int, will: SessionWill, clean: bool, after_s: float, expected: int, crash: bool
) -> None:
    """Once, or not at all; also when the primary crashed right after the connection ended."""
    cluster, edge = with_edge()
    edge.close(edge.open("alice", expiry_s=expiry_s, will=will), clean=clean)
    if crash:
        cluster.crash_all()
    cluster.run(after_s)
    assert len(fired(cluster)) == expected
    cluster.run(2.0 if after_s == 2.0 and not clean else 0.1)
    cluster.crash_all()
    cluster.run(10.0)
    assert len(fired(cluster)) == (0 if clean else 1)


@pytest.mark.parametrize(
    ("will", "clean_start", "clean_kick", "expected"),
    [(WILL, False, False, 1), (DELAYED, False, False, 0), (DELAYED, True, False, 1), (WILL, False, True, 0)],
)
def test_takeover_decides_the_old_will(will: SessionWill, clean_start: bool, clean_kick: bool, expected: int) -> None:
    """S-19 a, b: fired, or cancelled by a session resumed within the delay or by DISCONNECT 0x00."""
    cluster = Cluster()
    cluster.edges["e1"].open("alice", will=will)
    cluster.edges["e1"].clean_kicks = clean_kick
    cluster.edges["e2"].open("alice", clean_start=clean_start)
    cluster.run(5.0)
    assert len(fired(cluster)) == expected


def test_death_of_an_edge_fires_its_wills() -> None:
    """P6: also those of durable sessions; the session stays."""
    cluster, edge = with_edge()
    for name in ("alice", "bob", "carol"):
        edge.open(name, expiry_s=0 if name == "bob" else 100, will=SessionWill("w", name.encode(), 1))
    cluster.kill_edge("e1")
    cluster.run(0.5)
    assert sorted(fired(cluster)) == [b"alice", b"bob", b"carol"]
    assert cluster.nodes["s1"].core.partition_metrics.session_counts() == {"connected": 0, "absent": 2}


def fleet(cluster: Cluster, count: int, edge: str = "e1") -> None:
    """Open connections with wills, all at one edge."""
    for number in range(count):
        cluster.edges[edge].open(f"c{number}", expiry_s=0, will=SessionWill("w", b"%d" % number, 1), settle=False)
    cluster.settle()


def ordered(cluster: Cluster) -> list[int]:
    """Return the numbers of the wills that the second edge was ordered to publish, in order."""
    return [order.number for order in cluster.edges["e2"].wills]


def test_wills_of_one_operation_are_numbered_and_ordered_in_sequence() -> None:
    """A dead edge fires hundreds of wills with one operation."""
    cluster, _ = with_edge(partitions=1)
    fleet(cluster, 100)
    cluster.kill_edge("e1")
    cluster.run(0.5)
    assert sorted(fired(cluster), key=int) == [b"%d" % number for number in range(100)]
    assert ordered(cluster) == list(range(1, 101))


def test_wills_of_a_dead_edge_are_ordered_once_within_the_window() -> None:
    """An edge that is slow for seconds gets no order twice, and no more at once than the receivers' window."""
    cluster, _ = with_edge(partitions=1, settings=with_settings(will_window=8))
    fleet(cluster, 50)
    edge = cluster.edges["e2"]
    edge.answer_wills = False
    cluster.kill_edge("e1")
    cluster.run(20.0)
    assert ordered(cluster) == list(range(1, 9))
    slow = edge.unanswered.pop(0)  # the first of them takes longer than all others
    edge.end_wills()
    edge.unanswered.append(slow)
    cluster.run(5.0)
    assert ordered(cluster) == list(range(1, 9))
    edge.end_wills()
    edge.answer_wills = True
    cluster.run(5.0)
    assert ordered(cluster) == list(range(1, 51))
    assert len(fired(cluster)) == 50


def test_unpublished_will_is_ordered_again_after_a_delay() -> None:
    """For example, a destination's disk is full: its edge reports that, and gets the same order in a second."""
    cluster, _ = with_edge(partitions=1)
    fleet(cluster, 2)
    edge = cluster.edges["e2"]
    edge.answer_wills = False
    cluster.kill_edge("e1")
    cluster.run(0.5)
    edge.end_wills(again=True)
    cluster.run(0.5)
    assert ordered(cluster) == [1, 2]
    cluster.run(1.0)
    assert ordered(cluster) == [1, 2, 1, 2]
    edge.end_wills()
    cluster.run(5.0)
    assert ordered(cluster) == [1, 2, 1, 2]
    assert cluster.nodes["s1"].core.event_counts()["wills_ordered_again"] == 2


def test_will_orders_with_lost_frames_are_sent_again_on_link_up() -> None:
    """Orders are not repeated before: the shell reports the node that lost frames."""
    cluster, _ = with_edge(partitions=1)
    fleet(cluster, 3)
    edge, node = cluster.edges["e2"], cluster.nodes["s1"]
    edge.answer_wills = False
    cluster.filter = lambda *frame: frame[1] != "e2"
    cluster.kill_edge("e1")
    cluster.run(3.0)
    assert ordered(cluster) == []
    cluster.filter = lambda *_: True
    cluster.run(3.0)
    assert ordered(cluster) == []
    node.core.frames_lost.add("e2")
    node.linked(edge.key, up=True)
    cluster.run(1.0)
    assert ordered(cluster) == [1, 2, 3]
    edge.end_wills()
    cluster.run(3.0)
    assert ordered(cluster) == [1, 2, 3]


def test_wills_without_a_live_edge_are_pending() -> None:
    """A whole tier died: the first edge that starts gets their orders."""
    cluster, _ = with_edge(partitions=1)
    fleet(cluster, 3)
    cluster.kill_edge("e2")
    cluster.kill_edge("e1")
    cluster.run(3.0)
    assert fired(cluster) == []
    cluster.start_edge("e3")
    cluster.run(1.0)
    assert len(cluster.edges["e3"].wills) == 3


def will_copy(number: int, qos: int = 1, partition: int = 7, epoch: int = 1) -> PublishMessage:
    copy = PublishMessage(0, b"w", b"%d" % number, qos, origin_kind=OriginKind.WILL)
    copy.origin_a, copy.origin_b = partition << 32 | epoch, number
    return copy


def test_wills_of_one_partition_are_accepted_in_any_order() -> None:
    """Each will has an origin of its own; a later one does not make the earlier one a repeat."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice", "w")
    for number in (2, 1, 2, 1_000):
        edge.publish(will_copy(number), 0)
    cluster.settle()
    assert [push.payload for push in alice.received] == [b"2", b"1", b"1000"]
    assert cluster.nodes["s1"].core.event_counts()["repeats"] == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_repeated_will_is_detected_after_thousands_of_other_wills(qos: int) -> None:
    """Also under a later epoch, by another edge, after a crash, and at QoS 0: its window is separate."""
    cluster, edge = with_edge(partitions=1)
    edge.open("alice", "w")
    edge.publish(will_copy(5, qos), 0)
    cluster.settle()
    for number in range(1, 5_001):
        edge.publish(will_copy(number, 0, partition=8), 0)
    cluster.settle(30.0)
    cluster.crash_all()
    cluster.edges["e2"].publish(will_copy(5, qos), 0)
    cluster.settle()
    assert cluster.nodes["s1"].core.event_counts()["repeats"] == 1


def test_group_copy_of_a_will_goes_to_one_member() -> None:
    """The will is ordered twice, because its edge dies.

    The group's copy is redispatched once, to the recorded member.
    """
    cluster, _ = with_edge(partitions=1)
    cluster.start_edge("e3")
    fleet(cluster, 1)
    edge = cluster.edges["e2"]
    edge.answer_wills = False
    cluster.kill_edge("e1")
    cluster.run(0.5)
    cluster.edges["e3"].answer_wills = False
    cluster.kill_edge("e2")
    cluster.run(0.5)
    other = cluster.edges["e3"]
    (order,) = other.wills
    for _ in range(2):
        said = WillFired(0, 0, order.number, shares=[b"g/w", b"h/w"], properties=b"\x01\x01")
        other.answer(cluster.primary(0).key, said)
    cluster.run(1.0)
    handed = [(one.share, one.message.payload, one.message.qos) for one in other.answers(RedispatchOrder)]
    assert handed == [(b"g/w", b"0", 1), (b"h/w", b"0", 1)]
    assert {one.message.properties for one in other.answers(RedispatchOrder)} == {b"\x01\x01"}
    cluster.crash_all()
    cluster.run(1.0)
    assert len(other.answers(RedispatchOrder)) == 4 and len(other.wills) == 1
