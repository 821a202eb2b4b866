"""Sessions that end with many rows: no iteration blocks a node's loop, and CONNACK waits until they are deleted."""

import pytest

from edge.subscriptions.session_filters import FILTERS_PER_PIECE
from storage.sessions.session_ends import FILTERS_AT_ONCE, ROWS_AT_ONCE
from storage.state import keys
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster, with_settings
from tests.storage.timed_iterations import timed_rounds
from tests.turn_time import assert_within, timed
from wire.messages.batches import PublishMessage
from wire.messages.sessions import SessionOpened, SessionSubscribed, SessionSubscription, SubscribeSession
from wire.messages.wills import SessionWill

ROUND_MS = 3  # most processor time of one iteration: below the 5 ms bound of a loop
SHARDS = 64  # the default of a cluster
SIZES = [pytest.param(512, id="small"), pytest.param(1_000, id="full", marks=pytest.mark.slow)]


def subscribed(edge: Edge, client: Connection, count: int) -> list[str]:
    """Subscribe a session to broad filters, piece by piece, as an edge does."""
    names = [f"+/x{number}/#" for number in range(count)]
    for start in range(0, count, FILTERS_PER_PIECE):
        request = next(edge.requests)
        wanted = [SessionSubscription(name, 1, retain_handling=2) for name in names[start : start + FILTERS_PER_PIECE]]
        edge.ask(SubscribeSession(request, 0, edge.epoch(0), client.session, client.owner_epoch, wanted))
        while request in edge.asked:
            edge.cluster.step()
    assert all(code == 1 for answer in edge.answers(SessionSubscribed) for code in answer.reason_codes)
    return names


def queued(edge: Edge, client_id: str, count: int, payload: bytes = b"m") -> None:
    """Queue messages for a disconnected session."""
    alice = edge.open(client_id)
    edge.subscribe(alice, f"q/{client_id}")
    edge.close(alice)
    for at in range(count):
        edge.publish(PublishMessage(0, f"q/{client_id}".encode(), payload, 1), 0)
        if at % 500 == 499:
            edge.cluster.settle()
    edge.cluster.settle()


def until_opened(edge: Edge, opened: int) -> SessionOpened:
    """Step until that many CONNECTs are answered; return the last reply."""
    for _ in range(2_000):
        if len(edge.answers(SessionOpened)) >= opened:
            answer: SessionOpened = edge.answers(SessionOpened)[-1]
            return answer
        edge.cluster.step()
    raise AssertionError("not answered")


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("connected", [False, True])
@timed
def test_clean_start_over_many_filters_is_sliced(monkeypatch: pytest.MonkeyPatch, count: int, connected: bool) -> None:
    """The response leaves after the end of the older session, which gets no message from the first slice on."""
    cluster = Cluster(partitions=1, shards=SHARDS)
    edge = cluster.edges["e1"]
    alice = edge.open("alice")
    subscribed(edge, alice, count)
    if not connected:
        edge.close(alice)
    hosted = cluster.primary(0).core.partitions[0]
    before = len(edge.answers(SessionOpened))
    with timed_rounds(monkeypatch) as found:
        edge.open("alice", clean_start=True, settle=False)
        answer = until_opened(edge, before + 1)
    (session,) = hosted.partition.sessions.values()
    assert answer.session == session.number != alice.session
    assert not answer.session_present and not hosted.subscriptions.filters
    assert_within(f"{count} filters", max(found), ROUND_MS)


@pytest.mark.parametrize(
    "count", [pytest.param(5_000, id="small"), pytest.param(10_000, id="full", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("how", ["replaced", "expired"])
@timed
def test_long_queue_is_deleted_in_slices(monkeypatch: pytest.MonkeyPatch, how: str, count: int) -> None:
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    queued(edge, "alice", count)
    node = cluster.primary(0)
    core = node.core.partitions[0].partition
    (old,) = core.sessions.values()
    assert old.queued == count
    before = len(edge.answers(SessionOpened))
    if how == "expired":
        edge.close(edge.open("alice", receive_maximum=1), expiry_s=1)
    with timed_rounds(monkeypatch) as found:
        if how == "replaced":
            edge.open("alice", clean_start=True, settle=False)
            assert until_opened(edge, before + 1).session != old.number
        for _ in range(2_000):
            if old.number not in core.sessions:
                break
            cluster.step()
    cluster.settle()
    start, stop = keys.session_range(0, keys.QUEUE, old.number)
    assert not node.store.scan(start, stop, 1)
    assert_within(f"{count} queued, {how}", max(found), ROUND_MS)


def test_connects_during_a_session_end_are_processed_in_order() -> None:
    """Of two CONNECTs over a session that ends, the later one takes over from the first."""
    cluster = Cluster(partitions=1, shards=SHARDS)
    one, two = cluster.edges["e1"], cluster.edges["e2"]
    alice = one.open("alice")
    subscribed(one, alice, 10 * FILTERS_AT_ONCE)
    one.close(alice)
    opened = len(one.answers(SessionOpened))
    first = one.open("alice", clean_start=True, settle=False)
    cluster.step()
    second = two.open("alice", settle=False)
    cluster.settle()
    assert len(one.answers(SessionOpened)) == opened + 1
    (session,) = cluster.primary(0).core.partitions[0].partition.sessions.values()
    assert first.session == second.session == session.number
    assert two.answers(SessionOpened)[-1].session_present
    assert second.owner_epoch > first.owner_epoch and not first.open
    assert session.edge == "e2"


def test_older_connection_cannot_use_an_ending_session() -> None:
    """Its edge did not get the kick: its requests are refused, and its end has no effect."""
    cluster = Cluster(partitions=1, shards=SHARDS)
    one, two = cluster.edges["e1"], cluster.edges["e2"]
    alice = one.open("alice", will=SessionWill("gone", b"", 0, False, b"", 0, 0xFFFFFFFF))
    subscribed(one, alice, 10 * FILTERS_AT_ONCE)
    one.answer_kicks = False
    two.open("alice", clean_start=True, settle=False)
    core = cluster.primary(0).core.partitions[0].partition
    old = core.sessions[alice.session]
    while len(old.subscriptions) == 10 * FILTERS_AT_ONCE:
        cluster.step()
    late = one.subscribe(alice, "late", settle=False)
    one.close(alice, expiry_s=3600, settle=False)
    cluster.run(1.0)
    assert [answer.reason_codes for answer in one.answers(SessionSubscribed) if answer.request == late] == [[0x80]]
    (session,) = core.sessions.values()
    assert session.number != alice.session and session.edge == "e2" and not session.subscriptions
    assert len(one.wills + two.wills) == 1


@pytest.mark.parametrize("answers", [True, False])
def test_later_primary_answers_after_the_session_is_deleted(answers: bool) -> None:
    """The primary dies between two slices: the older connection does not get its session back."""
    cluster = Cluster(partitions=1, shards=SHARDS, nodes=2, replicas=2)
    one, two = cluster.edges["e1"], cluster.edges["e2"]
    alice = one.open("alice")
    subscribed(one, alice, 10 * FILTERS_AT_ONCE)
    one.answer_kicks = False
    bob = two.open("alice", clean_start=True, settle=False)
    node = cluster.primary(0)
    old = node.core.partitions[0].partition.sessions[alice.session]
    while len(old.subscriptions) > 7 * FILTERS_AT_ONCE:
        cluster.step()
    alice.open = True  # its edge still has it
    one.answer_kicks = answers
    cluster.kill(node.key.node)
    cluster.run(4.0)
    (session,) = cluster.primary(0).core.partitions[0].partition.sessions.values()
    assert session.number == bob.session != alice.session
    assert session.edge == "e2" and not session.subscriptions
    assert not two.answers(SessionOpened)[-1].session_present


def test_replaced_session_does_not_count_against_its_successor() -> None:
    """The ending session does not count against the CONNECT that replaces it."""
    cluster = Cluster(partitions=1, shards=SHARDS, settings=with_settings(sessions_max=1))
    one, two = cluster.edges["e1"], cluster.edges["e2"]
    alice = one.open("alice")
    subscribed(one, alice, 3 * FILTERS_AT_ONCE)
    one.close(alice)
    one.open("alice", clean_start=True, settle=False)
    two.open("bob", settle=False)
    cluster.settle()
    assert [answer.reason_code for answer in two.answers(SessionOpened)] == [0x97]
    assert one.answers(SessionOpened)[-1].reason_code == 0


def test_copies_of_an_ending_session_are_redispatched_in_order() -> None:
    """The queue of a replaced member is redispatched in slices."""
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    alice = edge.open("alice", "$share/g/q")
    edge.close(alice)
    count = 2 * ROWS_AT_ONCE + 1
    for at in range(count):
        edge.publish(PublishMessage(0, b"q", str(at).encode(), 1, share=b"g/q"), 0)
    cluster.settle()
    hosted = cluster.primary(0).core.partitions[0]
    edge.open("alice", clean_start=True)
    cluster.settle()
    assert len(hosted.delivery.redispatches) == count
    (session,) = hosted.partition.sessions.values()
    assert session.queued == 0


def test_connect_behind_one_of_a_dead_edge_is_answered() -> None:
    """The CONNECT that replaces a session was withdrawn by its edge's death: the next one waited indefinitely."""
    cluster = Cluster(partitions=1, shards=SHARDS)
    one, two = cluster.edges["e1"], cluster.edges["e2"]
    alice = one.open("alice")
    subscribed(one, alice, 10 * FILTERS_AT_ONCE)
    one.close(alice)
    one.open("alice", clean_start=True, settle=False)
    cluster.step()
    second = two.open("alice", settle=False)
    core = cluster.primary(0).core.partitions[0]
    while len(core.owners.openings.get("alice", ())) < 2:
        cluster.step()
    cluster.kill_edge("e1")
    cluster.run(3.0)
    assert not core.owners.openings
    (session,) = core.partition.sessions.values()
    assert session.number == second.session != alice.session
    assert session.edge == "e2" and not two.answers(SessionOpened)[-1].session_present
