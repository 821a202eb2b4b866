"""Members of shared groups are served round-robin; members without capacity are skipped once, not for each message."""

import random

import pytest

from storage.messages.groups import Groups
from storage.state.durable_sessions import DurableSession
from tests.storage.scripted_edge import Edge
from tests.storage.storage_cluster import Cluster
from tests.storage.timed_iterations import middle_round_ms, timed_rounds
from tests.turn_time import assert_within, timed
from wire.messages.batches import PublishMessage
from wire.messages.sessions import SessionSubscription

ROUND_MS = 5  # most processor time of one iteration
SHARE = b"g/q"


def member(number: int, *, window: int = 1) -> DurableSession:
    """Return a connected session."""
    session = DurableSession(number, f"c{number}")
    session.edge, session.window = "e1", window
    return session


def test_group_members_are_picked_round_robin() -> None:
    groups = Groups()
    for number in range(3):
        groups.join(SHARE, member(number))
        groups.join(SHARE, member(number))
    picked = [groups.pick(SHARE, absent=False) for _ in range(6)]
    assert [one.number for one in picked if one] == [0, 1, 2, 0, 1, 2]
    assert groups.pick(b"h/q", absent=True) is None


def test_group_member_without_capacity_rests_until_it_has_some() -> None:
    groups = Groups()
    one, two = member(1), member(2)
    for session in (one, two):
        groups.join(SHARE, session)
        groups.join(b"h/q", session)
    one.edge = ""
    assert [groups.pick(SHARE, absent=True) for _ in range(2)] == [two, two]
    two.out = 1
    assert groups.pick(SHARE, absent=False) is None
    assert [groups.pick(SHARE, absent=True) for _ in range(4)] == [one, two, one, two]
    groups.wake(one)
    assert groups.pick(SHARE, absent=False) is None
    one.edge = "e2"
    groups.wake(one)
    assert [groups.pick(SHARE, absent=True) for _ in range(2)] == [one, one]
    groups.leave(SHARE, one)
    assert groups.pick(SHARE, absent=True) is two
    groups.leave(SHARE, two)
    assert groups.pick(SHARE, absent=True) is None
    assert groups.pick(b"h/q", absent=False) is one


def test_group_pick_skips_no_member_with_capacity() -> None:
    """Against a scan of all members, with members that join, leave, and change."""
    rng = random.Random(1)
    groups = Groups()
    shares = [b"a/q", b"b/q", b"c/q"]
    sessions = [member(number) for number in range(12)]
    held: dict[bytes, set[int]] = {share: set() for share in shares}
    for _ in range(20_000):
        share, session = rng.choice(shares), rng.choice(sessions)
        what = rng.randrange(5)
        if what == 0:
            groups.join(share, session)
            held[share].add(session.number)
        elif what == 1:
            groups.leave(share, session)
            held[share].discard(session.number)
        elif what == 2:
            session.edge, session.out = rng.choice(["", "e1"]), rng.randrange(2)
            groups.wake(session)
        else:
            absent = rng.random() < 0.5
            picked = groups.pick(share, absent=absent)
            room = {number for number in held[share] if sessions[number].window_open}
            allowed = room or (held[share] if absent else set())
            assert (picked.number in allowed) if picked is not None else not allowed


def grouped(edge: Edge, members: int) -> None:
    """Let sessions join one group and disconnect."""
    clients = [edge.open(f"c{number}", settle=number % 500 == 499) for number in range(members)]
    edge.cluster.settle()
    for at, client in enumerate(clients, 1):
        edge.subscribe(client, SessionSubscription("$share/g/q", 1), settle=at % 500 == 0)
    edge.cluster.settle()
    for at, client in enumerate(clients, 1):
        edge.close(client, settle=at % 500 == 0)
    edge.cluster.settle()


def test_dropped_group_message_is_journaled_with_topic_and_group() -> None:
    """The journal had neither topic nor group, but the bytes of both as Python writes them."""
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    grouped(edge, 1)
    edge.publish(PublishMessage(0, b"q", b"m", 0, share=SHARE), 0)
    cluster.settle()
    (entry,) = [one for one in cluster.primary(0).core.placements.journal.entries if one.event == "drop"]
    assert (entry.reason, entry.topic, entry.detail) == ("no_subscriber_took", "q", "group 'g' on 'q'")


@timed
def test_group_with_thousands_of_disconnected_members_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 100 messages scanned 3 000 disconnected members; the connected one gets as many as its window allows."""
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    grouped(edge, 3_000)
    alice = edge.open("alice", receive_maximum=20)
    edge.subscribe(alice, SessionSubscription("$share/g/q", 1))
    found: list[float] = []
    for _ in range(5):
        for _ in range(100):
            edge.publish(PublishMessage(0, b"q", b"m", 1, share=SHARE), 0)
        with timed_rounds(monkeypatch) as some:
            cluster.settle()
        found.append(max(some))
        for push in list(alice.outbound.values()):
            edge.acknowledge(push, 4)
        cluster.settle()
    sessions = cluster.primary(0).core.partitions[0].partition.sessions.values()
    assert len(alice.received) == 100
    assert sum(session.queued for session in sessions) == 400
    print(f"{found} ms")
    assert_within("members away", middle_round_ms(found, 5), ROUND_MS)
