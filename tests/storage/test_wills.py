"""Wills by every rule, and what a crash at any moment leaves of them."""

import pytest

from tests.storage.requests import WILL, fired
from tests.storage.storage_cluster import Cluster, with_edge
from wire.messages.batches import PublishMessage
from wire.messages.wills import Will

DELAYED = Will("w", b"gone", 1, delay_s=3)


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
def test_when_a_will_fires(expiry_s: int, will: Will, clean: bool, after_s: float, expected: int, crash: bool) -> None:
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
def test_a_takeover_decides_the_old_will(will: Will, clean_start: bool, clean_kick: bool, expected: int) -> None:
    """S-19 a, b: fired, or cancelled when the session goes on within the delay, or when DISCONNECT 0x00 had come."""
    cluster = Cluster()
    cluster.edges["e1"].open("alice", will=will)
    cluster.edges["e1"].clean_kicks = clean_kick
    cluster.edges["e2"].open("alice", clean_start=clean_start)
    cluster.run(5.0)
    assert len(fired(cluster)) == expected


def test_the_death_of_an_edge_fires_the_wills_of_its_connections() -> None:
    """P6: also those of durable sessions; the session stays."""
    cluster, edge = with_edge()
    for name in ("alice", "bob", "carol"):
        edge.open(name, expiry_s=0 if name == "bob" else 100, will=Will("w", name.encode(), 1))
    cluster.kill_edge("e1")
    cluster.run(0.5)
    assert sorted(fired(cluster)) == [b"alice", b"bob", b"carol"]
    assert cluster.nodes["s1"].core.figures.session_counts() == {"connected": 0, "absent": 2}


def test_many_wills_of_one_operation_get_their_numbers_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead edge fires hundreds of wills with one operation: each is numbered behind the one before it."""
    cluster, edge = with_edge(partitions=1)
    for number in range(40):
        edge.open(f"c{number}", expiry_s=0, will=Will("w", b"%d" % number, 1))
    looked: list[int] = []

    class Firing(dict[int, object]):
        def __contains__(self, number: object) -> bool:
            looked.append(0)
            return super().__contains__(number)

    wills = cluster.primary(0).core.partitions[0].owners.wills
    monkeypatch.setattr(wills, "_firing", Firing())
    cluster.kill_edge("e1")
    cluster.run(0.5)
    assert sorted(fired(cluster), key=int) == [b"%d" % number for number in range(40)]
    assert len(looked) <= 3 * 40


def test_wills_of_one_operation_reach_a_partition_in_any_order() -> None:
    """Each will has an origin of its own; a later one does not make the earlier one a repeat."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice", "w")
    for number in (2, 1, 2, 1 << 33):
        edge.publish(PublishMessage(0, b"w", str(number).encode(), 1, origin_kind=2, origin_a=7, origin_b=number), 0)
    cluster.settle()
    assert [push.payload for push in alice.received] == [b"2", b"1", str(1 << 33).encode()]
    assert cluster.nodes["s1"].core.event_counts()["repeats"] == 1
