"""Connects of edges: the fast path answers in the same iteration, by the same rules as the general path."""

import random

import pytest

from router.map.commands import DeclareDead
from storage.core import FrameArrived
from tests.storage.requests import retained
from tests.storage.scripted_edge import Connection, Edge, encoded
from tests.storage.scripted_router import LEASE_S
from tests.storage.storage_cluster import Cluster
from wire.messages.batches import PublishMessage
from wire.messages.cluster_map import MapDelta
from wire.messages.connects import ConnectRequest, decode_answers, encode_record
from wire.messages.control import encode_control, join_controls
from wire.messages.frames import FrameKind
from wire.messages.nodes import MapStep, Moved
from wire.messages.sessions import CloseSession, OpenSession, SessionClosed, SessionOpened
from wire.messages.wills import SessionWill

CLIENTS = [f"client {number}" for number in range(8)]
WILL = SessionWill("w", b"gone")


def send(cluster: Cluster, edge: Edge, *requests: ConnectRequest) -> None:
    """Send requests in one frame."""
    payload = join_controls([encode_record(request) for request in requests])
    cluster.send(edge.key, "s1", FrameKind.CONNECTS, payload)


def opening(edge: Edge, client_id: str, **changes: object) -> OpenSession:
    partition = edge.cluster.map.partition_for(client_id)
    asked = {"clean_start": True, "expiry_s": 0} | changes
    return OpenSession(*edge.head(partition), client_id, next(edge.cluster.numbers), **asked)  # type: ignore[arg-type]


def ending(edge: Edge, client_id: str, owner_epoch: int, *, clean: bool = True) -> CloseSession:
    return CloseSession(*edge.head(edge.cluster.map.partition_for(client_id)), client_id, owner_epoch, clean)


def test_connects_of_one_iteration_are_answered_in_one_frame() -> None:
    """Twenty connections open, and end: a frame each way."""
    cluster = Cluster(partitions=8)
    edge = cluster.edges["e1"]
    frames: list[tuple[int, bytes]] = []

    def noted(_source: object, target: str, kind: int, payload: bytes) -> bool:
        if target == "e1":
            frames.append((kind, payload))
        return True

    cluster.filter = noted
    send(cluster, edge, *(opening(edge, f"c{number}") for number in range(20)))
    cluster.settle()
    ((kind, payload),) = frames
    answers = decode_answers(payload)
    assert kind == FrameKind.CONNECT_ANSWERS and len(answers) == 20
    assert all(isinstance(one, SessionOpened) and one.owner_epoch and not one.reason_code for one in answers)
    frames.clear()
    epochs = [one.owner_epoch for one in answers if isinstance(one, SessionOpened)]
    send(cluster, edge, *(ending(edge, f"c{number}", epoch) for number, epoch in enumerate(epochs)))
    cluster.settle()
    ((_, payload),) = frames
    assert [one.accepted for one in decode_answers(payload) if isinstance(one, SessionClosed)] == [True] * 20
    assert not any(len(hosted.owners) for hosted in cluster.nodes["s1"].core.partitions.values())


def test_connects_in_one_frame_get_separate_results() -> None:
    """A request of an old partition_epoch gets Moved, one for another edge's connection is not accepted."""
    cluster = Cluster(partitions=2)
    cluster.crash_all()  # raises the partitions' epochs
    one, two = cluster.edges["e1"], cluster.edges["e2"]
    stale, good = opening(one, "a"), opening(one, "b")
    stale.partition_epoch -= 1
    assert stale.partition_epoch > 0
    send(cluster, one, stale, good)
    cluster.settle()
    (moved,) = one.answers(Moved)
    (opened,) = one.answers(SessionOpened)
    assert (moved.request, opened.request) == (stale.request, good.request)
    send(cluster, two, ending(two, "b", opened.owner_epoch), opening(two, "c"))
    cluster.settle()
    assert [answer.accepted for answer in two.answers(SessionClosed)] == [False]
    assert len(two.answers(SessionOpened)) == 1
    hosted = cluster.nodes["s1"].core.partitions[cluster.map.partition_for("b")]
    assert hosted.owners.is_held_by("b", *one.key[::2])


def test_connect_without_lease_is_not_answered() -> None:
    """A claim that arrives meanwhile is answered after the next lease."""
    cluster = Cluster(partitions=2)
    edge = cluster.edges["e1"]
    cluster.silence("s1")
    cluster.run(LEASE_S + 1.0)
    send(cluster, edge, opening(edge, "a"))
    cluster.run(0.5)
    assert not edge.answers(SessionOpened)
    cluster.end_silence()
    cluster.run(1.0)
    assert len(edge.answers(SessionOpened)) == 1


def test_lease_lost_within_an_iteration_withholds_its_answers() -> None:
    """The map ends this incarnation after the claim, in the same iteration."""
    cluster = Cluster(partitions=2)
    edge, node = cluster.edges["e1"], cluster.nodes["s1"]
    claim = FrameArrived(edge.key, *encoded(opening(edge, "a")))
    ended = cluster.machine.apply(DeclareDead("s1", node.key.incarnation)).delta
    assert ended is not None
    for events, answered in (([claim], 1), ([claim, FrameArrived(cluster.router.key, *step(ended))], 0)):
        ready = node.core.handle(cluster.now, events)
        assert [kind for _, kind, _ in ready.sends].count(FrameKind.CONNECT_ANSWERS) == answered


def test_fast_path_connect_waits_for_no_message_commit() -> None:
    """A slow disk delays only stored sessions, messages, and reads behind them."""
    cluster = Cluster(partitions=1)
    edge, node = cluster.edges["e1"], cluster.nodes["s1"]
    edge.subscribe(edge.open("stored"), "kept")
    node.disk_slow = True
    tag = edge.publish(PublishMessage(0, b"kept", b"m", 1), 0)
    cluster.run(0.1)
    send(cluster, edge, opening(edge, "a"))
    edge.publish(PublishMessage(0, b"kept", b"m", 1), 0)
    send(cluster, edge, opening(edge, "b"))  # in the iteration of a message
    before = len(edge.answers(SessionOpened))
    cluster.run(0.1)
    answers = edge.answers(SessionOpened)[before:]
    assert len(answers) == 2 and tag not in edge.acked
    send(cluster, edge, ending(edge, "a", answers[0].owner_epoch), opening(edge, "c", expiry_s=100))
    cluster.run(0.1)
    assert [one.accepted for one in edge.answers(SessionClosed)] == [True]
    assert len(edge.answers(SessionOpened)) == before + 2, "a session is stored"
    node.disk_slow = False
    cluster.settle()
    assert len(edge.answers(SessionOpened)) == before + 3 and tag in edge.acked


@pytest.mark.parametrize("will", [None, WILL], ids=["session", "will"])
def test_fast_path_connect_waits_for_the_end_of_stored_state(will: SessionWill | None) -> None:
    """Else a crash would restore a session or a will after its client was informed of its end."""
    cluster = Cluster(partitions=1)
    edge, node = cluster.edges["e1"], cluster.nodes["s1"]
    connection = edge.open("a", will=will, expiry_s=0 if will else 100)
    node.disk_slow = True
    edge.close(connection, expiry_s=0, settle=False)
    cluster.run(0.1)
    before = len(edge.answers(SessionOpened))
    send(cluster, edge, opening(edge, "a"))
    cluster.run(0.1)
    assert len(edge.answers(SessionOpened)) == before
    node.disk_slow = False
    cluster.settle()
    assert len(edge.answers(SessionOpened)) == before + 1


def step(delta: MapDelta) -> tuple[int, bytes]:
    return FrameKind.CONTROL, encode_control(MapStep(delta))


def claim_some(edge: Edge, rng: random.Random) -> None:
    """Let an edge send claims of a few clients, which another edge claims too."""
    requests: list[ConnectRequest] = []
    for client_id in rng.sample(CLIENTS, 4):
        known = edge.connections.get(client_id)
        if known is not None and known.open and rng.random() < 0.4:
            known.open = False
            requests.append(ending(edge, client_id, known.owner_epoch, clean=rng.random() < 0.5))
            continue
        will, expiry_s = (WILL if rng.random() < 0.1 else None), (100 if rng.random() < 0.1 else 0)
        opened = opening(edge, client_id, expiry_s=expiry_s, will=will, withdrawn=rng.random() < 0.1)
        edge.connections[client_id] = Connection(client_id, opened.connection)
        requests.append(opened)
    for request in requests:
        edge.asked[request.request] = (request.partition, request)
    send(edge.cluster, edge, *requests)


def run_claims(seed: int, *, waiting: bool, messages: bool = False) -> list[object]:
    """Return all replies, the final owners, and the fired wills.

    Args:
        seed: Of the claims.
        waiting: A new session of each partition waits for its commit meanwhile.
        messages: A message likewise.
    """
    cluster, rng = Cluster(partitions=2), random.Random(seed)
    node = cluster.nodes["s1"]
    for number in range(12):
        node.disk_slow = waiting
        for partition in range(2):
            edge = cluster.edges["e1"]
            writer = Connection(f"writer {number} {partition}", next(cluster.numbers))
            edge.connections[writer.client_id] = writer
            edge.ask(OpenSession(*edge.head(partition), writer.client_id, writer.number, True, 100))
        if waiting:
            cluster.step()
        else:
            cluster.settle()
        if messages:
            node.disk_slow = True
            for partition in range(2):
                cluster.edges["e1"].publish(retained("t", f"{number}"), partition)
            cluster.step()
        for edge in cluster.edges.values():
            claim_some(edge, rng)
        cluster.step()
        node.disk_slow = False
        cluster.settle()
    holders = sorted(
        (client_id, each.edge, each.connection, each.session > 0)
        for item in node.core.partitions.values()
        for client_id, each in item.owners.holders.items()
    )
    fired = sorted(will.client_id for edge in cluster.edges.values() for will in edge.wills)
    return [*(answers_of(edge) for edge in cluster.edges.values()), holders, fired]


def answers_of(edge: Edge) -> list[tuple[object, ...]]:
    """Return them without their numbers: an order to close waits for a commit, so openings may be reordered."""
    opened = [
        (one.request, one.reason_code, one.session > 0, one.session_present) for one in edge.answers(SessionOpened)
    ]
    return sorted(opened) + sorted((one.request, one.accepted) for one in edge.answers(SessionClosed))


@pytest.mark.parametrize("seed", range(20))
def test_fast_path_claims_match_the_slow_path(seed: int) -> None:
    """The same claims at a node whose partitions wait for a commit: there all take the slow path."""
    assert run_claims(seed, waiting=False) == run_claims(seed, waiting=True)


@pytest.mark.parametrize("seed", range(20))
def test_fast_path_claims_beside_messages_match_the_slow_path(seed: int) -> None:
    """The same claims while a message of their partition waits for a slow disk."""
    assert run_claims(seed, waiting=False) == run_claims(seed, waiting=False, messages=True)
