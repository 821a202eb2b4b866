"""Outbound windows and queues: sending, and their state after a crash or a failover."""

import pytest

from router.map.commands import PlacePartitions
from storage.state import keys
from tests.storage.requests import message
from tests.storage.scripted_edge import Connection
from tests.storage.storage_cluster import Cluster, with_edge, with_settings
from wire.messages.batches import NO_EXPIRY, PublishMessage, Push
from wire.messages.cluster_map import PartitionEntry
from wire.messages.sessions import SessionSubscription


def test_pubrel_waiting_for_a_backup_is_valid_after_an_epoch_step() -> None:
    """Seed 103 of ``tests/e2e/test_paho_kills.py``: a hung node kept a QoS 2 message from two clients.

    A push without commit had overtaken PUBREL under the epoch of the next step, and edges reject lower epochs than the
    highest seen.
    """
    cluster, edge = with_edge(nodes=3, replicas=3, min_in_sync=2, partitions=1)
    alice = edge.open("alice", receive_maximum=2)
    edge.subscribe(alice, SessionSubscription("two", 2), SessionSubscription("one", 1))
    for topic, qos in ((b"two", 2), (b"one", 1), (b"one", 1), (b"one", 1)):
        edge.publish(PublishMessage(0, topic, b"m", qos), 0)
    cluster.settle()
    edge.acknowledge(edge.pushes[1], 4)
    cluster.settle()
    first, _, second = edge.pushes  # two are in flight; later ones have committed identifiers
    placement = cluster.map.partitions[0]
    silent, other = (name for name in placement.in_sync if name != placement.primary)
    cluster.cut(placement.primary, silent)
    edge.acknowledge(first, 5)
    cluster.run(0.05)
    cluster.cut(placement.primary, other)  # so that pending outputs stay pending briefly
    left = (placement.primary, other)
    assert not cluster.apply(PlacePartitions({0: PartitionEntry(placement.epoch + 1, placement.primary, left)}))
    cluster.run(0.05)
    edge.acknowledge(second, 4)
    cluster.run(0.05)
    assert [push.session_seq for push in edge.pushes] == [1, 2, 3, 4], "a place in the window was free"
    cluster.heal(placement.primary, other)
    cluster.run(1.0)
    assert cluster.primary(0).core.node == placement.primary
    assert [push.session_seq for push in edge.pushes if push.pubrel] == [first.session_seq]


def queued(cluster: Cluster, count: int, *, qos: int = 1, size: int = 3) -> None:
    """Let alice subscribe and disconnect, and queue messages for her."""
    edge = cluster.edges["e1"]
    alice = edge.open("alice")
    edge.subscribe(alice, SessionSubscription("a/#", qos))
    edge.close(alice)
    for number in range(count):
        edge.publish(PublishMessage(0, b"a/b", str(number).encode().ljust(size, b"."), qos), 0)
    cluster.settle()


def acknowledge_all(cluster: Cluster, connection: Connection) -> list[Push]:
    """Let the client acknowledge its messages; return them."""
    pushes = list(connection.outbound.values())
    for push in pushes:
        cluster.edges["e1"].acknowledge(push, 4 if push.qos == 1 else (7 if push.pubrel else 5))
    return pushes


def numbers(pushes: list[Push]) -> list[int]:
    """Return the first transmissions, in order."""
    return [int(push.payload.rstrip(b".")) for push in pushes if not push.pubrel]


def test_drain_does_not_wait_for_a_sync_per_window() -> None:
    """Identifiers are committed ahead of the window, so acknowledgements alone advance it (section 4.9)."""
    cluster = Cluster(partitions=1)
    queued(cluster, 300)
    alice = cluster.edges["e1"].open("alice", receive_maximum=10)
    assert numbers(alice.received) == list(range(10))
    cluster.nodes["s1"].disk_slow = True
    for _ in range(20):
        assert len(alice.outbound) <= 10
        acknowledge_all(cluster, alice)
        for _ in range(3):
            cluster.step()
    assert numbers(alice.received) == list(range(210))
    assert [push.packet_identifier for push in alice.received] == list(range(1, 211))
    cluster.nodes["s1"].disk_slow = False
    for _ in range(12):
        acknowledge_all(cluster, alice)
        cluster.settle()
    assert numbers(alice.received) == list(range(300))


def test_push_waits_for_the_commit_of_its_identifier() -> None:
    """The first window of a connection, and entries without an identifier, wait for the operation that assigns it."""
    cluster = Cluster(partitions=1, settings=with_settings(queue_messages_max=40))  # 10 ahead
    queued(cluster, 40)
    cluster.nodes["s1"].disk_slow = True
    alice = cluster.edges["e1"].open("alice", receive_maximum=10, settle=False)
    cluster.run(0.1)
    assert not alice.received
    cluster.nodes["s1"].disk_slow = False
    cluster.settle()
    assert len(alice.received) == 10
    cluster.nodes["s1"].disk_slow = True
    for _ in range(4):
        acknowledge_all(cluster, alice)
        cluster.run(0.1)
    assert len(alice.received) <= 20
    cluster.nodes["s1"].disk_slow = False
    for _ in range(4):
        acknowledge_all(cluster, alice)
        cluster.settle()
    assert numbers(alice.received) == list(range(40))


@pytest.mark.parametrize("qos", [1, 2])
def test_identifiers_given_ahead_survive_a_crash(qos: int) -> None:
    """It is unknown which of them had left: each is sent again under the same identifier, in order, with DUP."""
    cluster = Cluster(partitions=1)
    queued(cluster, 100, qos=qos)
    first = cluster.edges["e1"].open("alice", receive_maximum=10)
    for _ in range(3):
        acknowledge_all(cluster, first)
        cluster.step()
        cluster.step()
    cluster.crash_all()
    second = cluster.edges["e1"].open("alice", receive_maximum=10)
    for _ in range(40):
        assert len(second.outbound) <= 10
        acknowledge_all(cluster, second)
        cluster.settle()
    identifiers: dict[int, int] = {}
    for push in (*first.received, *second.received):
        assert identifiers.setdefault(push.session_seq, push.packet_identifier) == push.packet_identifier
    assert numbers(second.received) == sorted(numbers(second.received))
    assert sorted({*numbers(first.received), *numbers(second.received)}) == list(range(100))


@pytest.mark.parametrize("qos", [1, 2])
def test_identifier_newer_than_the_session_row_is_not_reused_after_a_crash(qos: int) -> None:
    """Its entry is consumed, but no row records it yet: after the next crash both entries would be sent under it."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(ack_delay_s=60.0))
    alice = edge.open("alice")
    edge.subscribe(alice, SessionSubscription("a/#", qos))
    edge.publish(PublishMessage(0, b"a/b", b"0", qos), 0)
    cluster.settle()
    cluster.crash_all()
    again = edge.open("alice")
    for _ in range(qos):
        acknowledge_all(cluster, again)
        cluster.settle()
    edge.publish(PublishMessage(0, b"a/b", b"1", qos), 0)
    cluster.settle()
    again.open = False  # her acknowledgements are lost
    again.answered.clear()
    cluster.crash_all()
    flights = cluster.nodes["s1"].core.partitions[0].partition.by_client["alice"].inflight.values()
    assert [flight.packet_identifier for flight in flights] == [1, 2]


def test_consumed_entries_stay_consumed_after_a_crash() -> None:
    """Their rows are deleted in a later batch: a session row written meanwhile marks them as consumed."""
    cluster = Cluster(partitions=1, settings=with_settings(ack_delay_s=60.0))
    queued(cluster, 5)
    edge = cluster.edges["e1"]
    alice = edge.open("alice")
    for push in list(alice.outbound.values())[:3]:
        edge.acknowledge(push, 4)
    cluster.settle()
    session = cluster.nodes["s1"].core.partitions[0].partition.by_client["alice"]
    cluster.nodes["s1"].core.partitions[0].partition.touch(session)  # as a subscription or the next run does
    edge.publish(PublishMessage(0, b"a/b", b"5", 1), 0)
    cluster.settle()
    cluster.crash_all()
    again = edge.open("alice")
    assert numbers(again.received) == [3, 4, 5]


def test_row_does_not_outlive_its_body() -> None:
    """The body of a message is deleted with its last acknowledgement, and so must be the row that references it."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(ack_delay_s=60.0))
    connections = [edge.open(name) for name in ("alice", "bob")]
    for connection in connections:
        edge.subscribe(connection, SessionSubscription("a/#", 1))
    payload = b"x" * 400  # shared: stored once
    edge.publish(PublishMessage(0, b"a/b", payload, 1), 0)
    cluster.settle()
    for connection in connections:
        acknowledge_all(cluster, connection)
    cluster.settle()
    cluster.crash_all()
    for name in ("alice", "bob"):
        assert edge.open(name).received == []


def test_window_of_large_bodies_is_sent_in_bounded_frames() -> None:
    """All of it may leave in one iteration; as one frame it exceeded the 8 MiB of a link, and ended the process."""
    cluster = Cluster(partitions=1, settings=with_settings(queue_bytes_max=1 << 30))
    queued(cluster, 64, size=200_000)
    alice = cluster.edges["e1"].open("alice", receive_maximum=64)
    assert numbers(alice.received) == list(range(64))


def test_disconnected_session_gets_queued_messages_in_order() -> None:
    """QoS 1 and 2 are queued for disconnected sessions; QoS 0 is not."""
    cluster, edge = with_edge(settings=with_settings(queue_messages_max=100))
    alice = edge.open("alice", "a/#")
    edge.close(alice)
    for number in range(10):
        edge.publish(message(str(number), qos=number % 3), alice.session >> 48)
    cluster.settle()
    alice = cluster.edges["e2"].open("alice")
    assert [push.payload for push in alice.received] == [b"1", b"2", b"4", b"5", b"7", b"8"]
    assert not any(push.dup for push in alice.received)


def test_window_survives_failover() -> None:
    """Receive Maximum applies to the connection under any primary [MQTT-3.3.4-9]."""
    cluster, edge = with_edge()
    alice = edge.open("alice", "a/#", receive_maximum=3)
    cluster.crash_all()
    for number in range(8):
        edge.publish(message(str(number)), alice.session >> 48)
    cluster.settle()
    assert [push.payload for push in alice.received] == [b"0", b"1", b"2"]
    for push in list(alice.received):
        edge.acknowledge(push, 4)
    cluster.settle()
    assert [push.payload for push in alice.received] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_acknowledgements_are_saved_with_the_next_operation_or_alone() -> None:
    """A message and its acknowledgement are one operation in a stream of messages, and two otherwise."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice")
    edge.subscribe(alice, SessionSubscription("a/#", 1))
    partition = cluster.nodes["s1"].core.partitions[0].partition

    def rows() -> int:
        start, stop = keys.session_range(0, keys.QUEUE, alice.session)
        return len(partition.store.scan(start, stop, 9))

    for number in range(3):
        before = partition.meta.op_index
        edge.publish(message(str(number)), 0)
        cluster.settle()
        assert (partition.meta.op_index, rows()) == (before + 1, 1), "the row of the message before is deleted with it"
        acknowledge_all(cluster, alice)
        cluster.run(0.5)
    cluster.run(1.0)
    assert (partition.meta.op_index, rows()) == (before + 2, 0)


def test_full_window_makes_acknowledgements_urgent() -> None:
    """The node's loop delays PUBACKs only if no message waits for them."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice", receive_maximum=2)
    edge.subscribe(alice, SessionSubscription("a/#", 1))
    core = cluster.nodes["s1"].core
    for number in range(2):
        edge.publish(message(str(number)), 0)
        cluster.settle()
    assert core.crowded_until <= cluster.now
    edge.publish(message("2"), 0)
    cluster.settle()
    assert core.crowded_until > cluster.now


def test_queued_message_expires_at_the_maximum() -> None:
    """storage.message_expiry_max_s: also without an expiry of its own; an outage does not count."""
    cluster, edge = with_edge(settings=with_settings(message_expiry_max_s=20))
    alice, bob = edge.open("alice", "a/#"), edge.open("bob", "a/#")
    for one in (alice, bob):
        edge.close(one)
        for name, expiry_s in ((b"none", NO_EXPIRY), (b"long", 3600), (b"short", 4)):
            edge.publish(PublishMessage(0, b"a/b", name, 1, expiry_s=expiry_s), one.session >> 48)
    cluster.settle()
    cluster.kill("s1", declare=False)
    cluster.run(1000)
    cluster.start("s1")
    cluster.run(9.0)
    in_time = {push.payload: push.expiry_s for push in edge.open("alice").received}
    assert in_time.keys() == {b"none", b"long"} and all(1 <= left <= 14 for left in in_time.values())
    cluster.run(20.0)
    assert edge.open("bob").received == []
    assert cluster.nodes["s1"].core.event_counts()["dropped_expired"] >= 3
