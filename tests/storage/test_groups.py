"""Members of shared groups take turns; those that have no room are passed over once, not with each message."""

import random

import pytest

from storage.messages.groups import Groups
from storage.state.durable_sessions import DurableSession
from tests.storage.rounds import middle_round_ms, timed_rounds
from tests.storage.scripted_edge import Edge
from tests.storage.storage_cluster import Cluster
from tests.turn_time import assert_within, timed
from wire.messages.batches import PublishMessage
from wire.messages.sessions import SessionSubscription

ROUND_MS = 5  # most processor time of one turn
SHARE = b"g/q"


def member(number: int, *, window: int = 1) -> DurableSession:
    """Return a connected session."""
    session = DurableSession(number, f"c{number}")
    session.edge, session.window = "e1", window
    return session


def test_members_take_turns() -> None:
    groups = Groups()
    for number in range(3):
        groups.join(SHARE, member(number))
        groups.join(SHARE, member(number))
    picked = [groups.pick(SHARE, absent=False) for _ in range(6)]
    assert [one.number for one in picked if one] == [0, 1, 2, 0, 1, 2]
    assert groups.pick(b"h/q", absent=True) is None


def test_a_member_without_room_rests_until_it_has_some() -> None:
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


def test_nobody_who_has_room_is_passed_over() -> None:
    """Against a look at every member, with members that come, go, and change."""
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
    """Let so many sessions join one group and go away."""
    clients = [edge.open(f"c{number}", settle=number % 500 == 499) for number in range(members)]
    edge.cluster.settle()
    for at, client in enumerate(clients, 1):
        edge.subscribe(client, SessionSubscription("$share/g/q", 1), settle=at % 500 == 0)
    edge.cluster.settle()
    for at, client in enumerate(clients, 1):
        edge.close(client, settle=at % 500 == 0)
    edge.cluster.settle()


def test_a_message_that_no_member_takes_is_told_with_its_topic_and_group() -> None:
    """The journal had neither topic nor group, but the bytes of both as Python writes them."""
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    grouped(edge, 1)
    edge.publish(PublishMessage(0, b"q", b"m", 0, share=SHARE), 0)
    cluster.settle()
    (entry,) = [one for one in cluster.primary(0).core.placements.journal.entries if one.event == "drop"]
    assert (entry.reason, entry.topic, entry.detail) == ("no_subscriber_took", "q", "group 'g' on 'q'")


@timed
def test_thousands_of_members_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 100 messages of a turn went past 3 000 of them; the one that is connected gets what it has room for."""
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
