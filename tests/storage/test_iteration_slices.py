"""Many simultaneous events or pending requests: no single iteration blocks a node's loop."""

import pytest

from storage.state import keys
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster, with_edge
from tests.storage.storage_node import StorageNode
from tests.storage.timed_iterations import timed_rounds
from tests.turn_time import assert_within, timed
from wire.messages.batches import PublishMessage, encode_message
from wire.messages.frames import FrameKind
from wire.messages.sessions import SessionOpened
from wire.messages.wills import SessionWill

ROUND_MS = 5  # most processor time of one iteration
WILL = SessionWill("gone", b"", 0, False, b"", 0, 0xFFFFFFFF)


def opened(edge: Edge, clients: int, will: SessionWill | None = None) -> list[Connection]:
    """Open stored sessions."""
    connections = []
    for number in range(clients):
        connections.append(edge.open(f"c{number}", will=will, settle=False))
        if number % 500 == 499:
            edge.cluster.settle()
    edge.cluster.settle()
    return connections


@pytest.mark.parametrize("partitions", [1, 8])
@timed
def test_death_of_an_edge_with_a_thousand_connections_is_sliced(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """Every will is published once; a client that reconnects elsewhere meanwhile keeps its session."""
    cluster = Cluster(partitions=partitions)
    opened(cluster.edges["e1"], 1_000, WILL)
    two = cluster.edges["e2"]
    with timed_rounds(monkeypatch) as found:
        cluster.kill_edge("e1")
        cluster.step()
        back = two.open("c999", settle=False)
        cluster.settle()
    hosted = cluster.nodes["s1"].core.partitions.values()
    assert sorted(one.will.topic for one in two.wills) == ["gone"] * 1_000
    assert [s.client_id for one in hosted for s in one.partition.sessions.values() if s.edge] == [back.client_id]
    assert two.answers(SessionOpened)[-1].session_present
    assert_within(f"{partitions} partitions", max(found), ROUND_MS)


@timed
def test_thousand_simultaneous_wills_have_short_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    clients = opened(edge, 1_000, SessionWill("late", b"", 0, False, b"", 1, 0xFFFFFFFF))
    for client in clients:
        edge.close(client, clean=False, settle=False)
    cluster.settle()
    with timed_rounds(monkeypatch) as found:
        cluster.run(2.0)
    assert len(edge.wills) + len(cluster.edges["e2"].wills) == 1_000
    assert_within("1 000 wills", max(found), ROUND_MS)


@timed
def test_thousand_connects_behind_a_silent_edge_have_short_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=1)
    one, two = cluster.edges["e1"], cluster.edges["e2"]
    opened(one, 1_000)
    one.answer_kicks = False
    for number in range(1_000):
        two.open(f"c{number}", settle=False)
    cluster.step()
    cluster.step()
    with timed_rounds(monkeypatch) as found:
        cluster.run(1.0)
    assert len(two.answers(SessionOpened)) == 1_000
    assert_within("1 000 answers", max(found), ROUND_MS)


@timed
def test_simultaneous_acknowledgement_saves_have_short_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    clients = opened(edge, 500)
    for client in clients:
        edge.subscribe(client, "all", settle=False)
    cluster.settle()
    for _ in range(40):
        edge.publish(PublishMessage(0, b"all", b"m", 1), 0)
    cluster.settle()
    for client in clients:
        for push in list(client.outbound.values()):
            edge.acknowledge(push, 4)
    cluster.step()
    cluster.step()
    sessions = cluster.primary(0).core.partitions[0].partition.sessions.values()
    with timed_rounds(monkeypatch) as found:
        cluster.run(3.0)
    assert not any(session.acked_rows for session in sessions)
    assert_within("500 sessions that save", max(found), ROUND_MS)


@timed
def test_frame_of_messages_with_a_hundred_receivers_is_sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of receivers is known only during processing: the rest of a quantum is left for later ones."""
    cluster = Cluster(partitions=1)
    edge, other = cluster.edges["e1"], cluster.edges["e2"]
    clients = opened(edge, 100)
    for client in clients:
        edge.subscribe(client, "all", settle=False)
    cluster.settle()
    for number in range(160):
        edge.publish(PublishMessage(0, b"all", b"%d" % number, 1), 0)
    other.open("late", settle=False)
    with timed_rounds(monkeypatch) as found:
        cluster.settle()
    assert len(other.answers(SessionOpened)) == 1
    for client in clients:
        received = [int(push.payload) for push in client.received]
        assert received == list(range(len(received))) and received
    print(f"{sorted(found)[-5:]} ms")
    assert_within("messages with 100 receivers", max(found), ROUND_MS)


@timed
def test_message_with_a_thousand_receivers_takes_several_quanta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copies are still one operation, and later messages do not extend the iteration."""
    cluster = Cluster(partitions=1)
    edge, other = cluster.edges["e1"], cluster.edges["e2"]
    clients = opened(edge, 1_000)
    for client in clients:
        edge.subscribe(client, "all", settle=False)
    cluster.settle()
    partition = cluster.primary(0).core.partitions[0].partition
    before = partition.meta.op_index
    with timed_rounds(monkeypatch) as found:
        with edge.one_frame():
            for number in range(3):
                edge.publish(PublishMessage(0, b"all", b"%d" % number, 1), 0)
        other.open("late", settle=False)
        cluster.run(1.0)
    assert len(other.answers(SessionOpened)) == 1
    assert [[push.payload for push in client.received] for client in clients] == [[b"0", b"1", b"2"]] * 1_000
    assert not edge.unfinished
    assert partition.meta.op_index - before == 3, "an iteration ends after the message in progress"
    print(f"{sorted(found)[-5:]} ms")
    assert_within("a message with 1 000 receivers", max(found), ROUND_MS)


@pytest.mark.parametrize("copies", [2, 3, 7, 1_000])
def test_messages_for_several_partitions_are_sliced_in_order(monkeypatch: pytest.MonkeyPatch, copies: int) -> None:
    """With any quantum size every receiver of each partition gets all of them, in order, and each is acknowledged."""
    monkeypatch.setattr(StorageNode, "copies", (copies,))
    cluster, edge = with_edge(partitions=3)
    clients = opened(edge, 30)
    for client in clients:
        edge.subscribe(client, "all", settle=False)
    cluster.settle()
    numbers = (0, 1, 2)
    node = cluster.primary(0).key.node
    records = []
    for number in range(12):
        message = PublishMessage(1_000 + number, b"all", b"%d" % number, 1)
        message.partitions, message.epochs = numbers, tuple(edge.epoch(one) for one in numbers)
        records.append(encode_message(message))
    cluster.send(edge.key, node, FrameKind.PUBLISH, b"".join(records[:7]))
    for record in records[7:]:
        cluster.send(edge.key, node, FrameKind.PUBLISH, record)
    cluster.run(6.0)
    assert {tuple(int(push.payload) for push in client.received) for client in clients} == {tuple(range(12))}
    assert sorted(ack.tag for ack in edge.acks) == sorted(1_000 + number for number in range(12) for _ in numbers)


@timed
def test_window_of_large_messages_is_sent_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MB enter the window of a reconnecting client."""
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    alice = edge.open("alice", "q")
    edge.close(alice)
    for number in range(64):
        edge.publish(PublishMessage(0, b"q", number.to_bytes(2, "big") * 500_000, 1), 0)
        cluster.settle()
    with timed_rounds(monkeypatch) as found:
        alice = edge.open("alice")
    assert [push.payload[:2] for push in alice.received] == [number.to_bytes(2, "big") for number in range(64)]
    print(f"{sorted(found)[-5:]} ms")
    assert_within("the window, but for 19 turns", sorted(found)[-20], ROUND_MS)  # all are copies of memory


def test_requests_pending_until_serving_keep_their_order() -> None:
    """Messages that arrive while older ones are pending are queued after them."""
    cluster = Cluster(partitions=1, nodes=2, replicas=2)
    edge = cluster.edges["e1"]
    alice = edge.open("alice", "q", receive_maximum=65_535)
    edge.close(alice)
    cluster.kill(cluster.primary(0).key.node)
    hosted = cluster.primary(0).core.partitions
    sent = 0
    for _ in range(400):
        for _ in range(20 if sent < 3_000 else 0):
            edge.publish(PublishMessage(0, b"q", str(sent).encode(), 1), 0)
            sent += 1
        cluster.step()
    cluster.settle()
    (session,) = hosted[0].partition.sessions.values()
    assert session.queued == sent == 3_000
    alice = edge.open("alice", receive_maximum=65_535)
    for _ in range(500):
        for push in list(alice.outbound.values()):
            edge.acknowledge(push, 4)
        if not session.queued:
            break
        cluster.step()
    assert [push.payload for push in alice.received] == [str(number).encode() for number in range(sent)]


@timed
def test_acknowledgement_of_large_messages_has_short_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces of 64 MB are deleted completely, without reading them."""
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    alice = edge.open("alice")
    edge.subscribe(alice, "q")
    for number in range(64):
        edge.publish(PublishMessage(0, b"q", number.to_bytes(2, "big") * 500_000, 1), 0)
        cluster.settle()
    node = cluster.primary(0)
    bodies = keys.kind_range(0, keys.BODY)
    assert len(node.store.scan(*bodies, 1_000)) == 64 * 4
    for push in list(alice.outbound.values()):
        edge.acknowledge(push, 4)
    with timed_rounds(monkeypatch) as found:
        cluster.settle()
    assert not node.store.scan(*bodies, 1)
    print(f"{max(found):.2f} ms")
    assert_within("large messages", max(found), ROUND_MS)


@timed
def test_simultaneous_clean_starts_have_short_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five hundred CONNECTs with Clean Start in one iteration took 29 ms of it; now they are processed in slices."""
    cluster, edge = with_edge(partitions=1)
    opened(edge, 500)
    with timed_rounds(monkeypatch) as found:
        for number in range(500):
            edge.open(f"c{number}", clean_start=True, settle=False)
        edge.open("last", settle=False)
        cluster.settle()
    answers = edge.answers(SessionOpened)[500:]
    assert [answer.session_present for answer in answers] == [False] * 501
    assert_within("500 CONNECTs", max(found), ROUND_MS)


@timed
def test_frames_of_thousands_of_messages_and_acknowledgements_are_sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets that many clients of an edge send within one of its iterations arrive in one frame."""
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    clients = [edge.open(f"c{number}", receive_maximum=200, settle=False) for number in range(20)]
    cluster.settle()
    for client in clients:
        edge.subscribe(client, client.client_id, settle=False)
    cluster.settle()
    with timed_rounds(monkeypatch) as found:
        with edge.one_frame():
            for number in range(3_000):
                edge.publish(PublishMessage(0, f"c{number % 20}".encode(), b"m", 1), 0)
        cluster.settle()
    assert not edge.unfinished
    with timed_rounds(monkeypatch) as acknowledged:
        with edge.one_frame():
            for client in clients:
                for push in list(client.outbound.values()):
                    edge.acknowledge(push, 4)
        cluster.settle()
    assert_within("3 000 messages", max(found), ROUND_MS)
    assert_within("their acknowledgements", max(acknowledged), ROUND_MS)
