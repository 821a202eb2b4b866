"""Many filters of durable sessions: no iteration blocks a node's loop when they are added or removed."""

import pytest

from edge.subscriptions.session_filters import FILTERS_PER_PIECE
from storage.sessions.session_ends import FILTERS_AT_ONCE
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster
from tests.storage.timed_iterations import middle_round_ms, timed_rounds
from tests.turn_time import assert_within, timed
from wire.messages.batches import PublishMessage
from wire.messages.control import decode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.routes import RemoveRoutes
from wire.messages.sessions import (
    SessionSubscribed,
    SessionUnsubscribed,
)

ROUND_MS = 5  # most processor time of one iteration
SHARDS = 64  # the default of a cluster
SIZES = [pytest.param(192, id="small"), pytest.param(1_000, id="full", marks=pytest.mark.slow)]


def subscribe(edge: Edge, client: Connection, names: list[str]) -> int:
    """Send filters as an edge does, piece by piece; return the number of pieces."""
    pieces = [names[at : at + FILTERS_PER_PIECE] for at in range(0, len(names), FILTERS_PER_PIECE)]
    for piece in pieces:
        request = edge.subscribe(client, *piece, qos=1, settle=False)
        step_until_answered(edge, request)
        (answer,) = [one for one in edge.answers(SessionSubscribed) if one.request == request]
        assert answer.reason_codes == [1] * len(piece)
    return len(pieces)


def step_until_answered(edge: Edge, request: int) -> None:
    for _ in range(1_000):
        if request not in edge.asked:
            return
        edge.cluster.step()
    raise AssertionError("not answered")


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("shape", ["+/x{}/#", "plant/x{}/#"])
@timed
def test_subscribe_and_unsubscribe_of_many_filters_have_short_iterations(
    monkeypatch: pytest.MonkeyPatch, shape: str, count: int
) -> None:
    """Broad filters have a route in each of 64 shards."""
    cluster = Cluster(partitions=1, shards=SHARDS)
    edge = cluster.edges["e1"]
    alice = edge.open("alice")
    names = [shape.format(number) for number in range(count)]
    with timed_rounds(monkeypatch) as found:
        pieces = subscribe(edge, alice, names)
        taken = middle_round_ms(found, pieces)
        found.clear()
        for start in range(0, count, FILTERS_PER_PIECE):
            step_until_answered(edge, edge.unsubscribe(alice, *names[start : start + FILTERS_PER_PIECE]))
        dropped = middle_round_ms(found, pieces)
    assert len(edge.answers(SessionUnsubscribed)) == pieces
    assert not cluster.primary(0).core.partitions[0].subscriptions
    assert_within(f"{count} of {shape}", taken, ROUND_MS)
    assert_within(f"{count} of {shape}, removed", dropped, ROUND_MS)


def ask_without_answer(edge: Edge, clients: int) -> None:
    """Let many clients have a request in flight, because no router answers."""
    opened = [edge.open(f"waits-{number}") for number in range(clients)]
    edge.cluster.router.routes_answered = False
    for number, client in enumerate(opened):
        wanted = [f"+/w{number}/{at}" for at in range(FILTERS_PER_PIECE)]
        edge.subscribe(client, *wanted, qos=1, settle=False)
        edge.cluster.step()


@pytest.mark.parametrize("clients", [pytest.param(10, id="small"), pytest.param(60, id="full", marks=pytest.mark.slow)])
@timed
def test_subscribe_cost_is_independent_of_pending_requests(monkeypatch: pytest.MonkeyPatch, clients: int) -> None:
    """Slow routers leave thousands of requests in flight: they are not scanned."""
    cluster = Cluster(partitions=1, shards=SHARDS)
    edge = cluster.edges["e1"]
    alice = edge.open("alice")
    names = [f"+/x{number}/#" for number in range(FILTERS_PER_PIECE)]
    subscribe(edge, alice, names)
    ask_without_answer(edge, clients)
    with timed_rounds(monkeypatch) as found:
        request = edge.unsubscribe(alice, *names)
        step_until_answered(edge, request)
    assert [answer.reason_codes for answer in edge.answers(SessionUnsubscribed)] == [[0] * FILTERS_PER_PIECE]
    assert_within(f"beside {clients} clients", max(found), 2 * ROUND_MS)  # it is one iteration


def removals(cluster: Cluster) -> dict[int, list[str]]:
    """Record the filters that each shard removes."""
    removed: dict[int, list[str]] = {}

    def note(_source: PeerKey, destination: str, kind: int, payload: bytes) -> bool:
        message = decode_control(payload) if destination == "r1" and kind == FrameKind.CONTROL else None
        if isinstance(message, RemoveRoutes):
            removed.setdefault(message.shard, []).extend(route.topic_filter for route in message.routes)
        return True

    cluster.filter = note
    return removed


@pytest.mark.parametrize(
    "count", [pytest.param(512, id="small"), pytest.param(1_000, id="full", marks=pytest.mark.slow)]
)
@timed
def test_expiry_of_a_session_with_many_filters_is_sliced(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The session is deleted in slices, and all its routes too."""
    cluster = Cluster(partitions=1, shards=SHARDS)
    edge = cluster.edges["e1"]
    alice = edge.open("alice")
    names = [f"+/x{number}/#" for number in range(count)]
    subscribe(edge, alice, names)
    removed = removals(cluster)
    edge.close(alice, expiry_s=1)
    with timed_rounds(monkeypatch) as found:
        cluster.run(1.5)
    cluster.run(2.0)  # some routes leave in each tick
    assert not cluster.primary(0).core.partitions[0].partition.sessions
    assert {shard: sorted(gone) for shard, gone in removed.items()} == dict.fromkeys(range(SHARDS), sorted(names))
    assert cluster.nodes["s1"].core.event_counts()["sessions_expired"] == 1
    assert_within(f"{count} filters", max(found), ROUND_MS)


def expiring(expiry_s: int = 1) -> tuple[Cluster, Edge, list[str]]:
    """Return a cluster with a session of many filters that has begun to end, and has not lost all of them."""
    cluster = Cluster(partitions=1, shards=SHARDS)
    edge = cluster.edges["e1"]
    alice = edge.open("alice")
    names = [f"+/x{number}/#" for number in range(10 * FILTERS_AT_ONCE)]
    subscribe(edge, alice, names)
    edge.close(alice, expiry_s=expiry_s, settle=False)
    hosted = cluster.primary(0).core.partitions[0]
    for _ in range(2_000):
        cluster.step()
        (session,) = hosted.partition.sessions.values()
        if 0 < len(session.subscriptions) < len(names):
            return cluster, edge, names
    raise AssertionError("does not end in slices")


@pytest.mark.parametrize("expiry_s", [0, 1])
def test_session_ending_in_slices_serves_no_client(expiry_s: int) -> None:
    """It gets no message, and its client gets no session, as after the end of one with few filters."""
    cluster, edge, names = expiring(expiry_s)
    hosted = cluster.primary(0).core.partitions[0]
    (ending,) = hosted.partition.sessions.values()
    left = sorted(ending.subscriptions)[-1]
    edge.publish(PublishMessage(0, left.replace("+", "a").replace("#", "b").encode(), b"late", 1), 0)
    cluster.step()
    assert ending.queued == 0
    alice = edge.open("alice")
    (session,) = hosted.partition.sessions.values()
    assert alice.session == session.number != ending.number
    assert not session.subscriptions
    cluster.settle()
    edge.subscribe(alice, names[0])
    assert hosted.subscriptions.filters == 1


def test_later_primary_continues_a_session_end() -> None:
    cluster, edge, _ = expiring()
    for _ in range(3):
        cluster.step()  # until the first slice is on disk
    (ending,) = cluster.primary(0).core.partitions[0].partition.sessions.values()
    assert ending.subscriptions
    cluster.kill("s1", declare=False)
    cluster.start("s1")
    cluster.run(3.0)
    hosted = cluster.primary(0).core.partitions[0]
    assert not hosted.partition.sessions and not hosted.subscriptions.filters
    assert edge.open("alice").session


@pytest.mark.parametrize(
    "count", [pytest.param(300, id="small"), pytest.param(3_000, id="full", marks=pytest.mark.slow)]
)
@timed
def test_simultaneous_session_expiries_have_short_iterations(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """As an hour after a switch failed; a client that reconnects before its session was deleted resumes it."""
    cluster = Cluster(partitions=1, shards=SHARDS)
    edge = cluster.edges["e1"]
    clients = [edge.open(f"c{number}", settle=False) for number in range(count)]
    cluster.settle()
    for client in clients:
        edge.subscribe(client, f"a/{client.client_id}", f"b/{client.client_id}", settle=False)
    cluster.settle()
    removed = removals(cluster)
    for client in clients:
        edge.close(client, expiry_s=1, settle=False)
    sessions = cluster.primary(0).core.partitions[0].partition.sessions
    with timed_rounds(monkeypatch) as found:
        while len(sessions) == count:
            cluster.step()
        back = edge.open(f"c{count - 1}", settle=False)
        for _ in range(count):
            cluster.step()
            if len(sessions) == 1:
                break
    cluster.settle()
    assert [session.client_id for session in sessions.values()] == [back.client_id]
    assert sum(len(names) for names in removed.values()) == 2 * (count - 1)
    rest = found[5:]  # the first ones process the edge's requests
    assert_within(f"{count} sessions", max(rest), ROUND_MS)


def test_resubscribed_filter_keeps_its_route() -> None:
    """Removing the route afterwards would remove the one added again."""
    cluster = Cluster(partitions=1, shards=SHARDS)
    edge = cluster.edges["e1"]
    alice = edge.open("alice")
    names = [f"+/x{number}/#" for number in range(2 * FILTERS_PER_PIECE)]
    subscribe(edge, alice, names)
    removed = removals(cluster)
    edge.unsubscribe(alice, *names)
    edge.subscribe(alice, names[-1], settle=False)
    cluster.settle()
    assert {shard: sorted(gone) for shard, gone in removed.items()} == dict.fromkeys(range(SHARDS), sorted(names[:-1]))
    assert [one.topic_filter for one in cluster.router.added[-SHARDS].routes] == [names[-1]]


def test_session_without_expiry_outlives_its_former_deadline() -> None:
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    edge.close(edge.open("alice"), expiry_s=1)
    edge.close(edge.open("alice", expiry_s=0xFFFFFFFF))
    cluster.run(2.0)
    assert len(cluster.primary(0).core.partitions[0].partition.sessions) == 1
