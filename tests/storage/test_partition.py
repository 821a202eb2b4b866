"""A partition at its primary, driven through the storage core: sessions, queues, acknowledgements, gating."""

import pytest

from router.map.commands import PlacePartitions, RegisterNode
from storage.core import StorageCore
from storage.hosting import placements
from storage.state.durable_sessions import DurableSession
from storage.state.partition import QOS0_BYTES_MAX, Partition
from storage.state.settings import PartitionSettings
from tests.simulation.model_store import ModelDisk, ModelStore
from tests.simulation.storage_process import STORE_SETTINGS
from tests.storage.requests import message
from tests.storage.scripted_router import ROUTER
from tests.storage.storage_cluster import Cluster, with_edge, with_settings
from wire.messages.batches import PublishMessage
from wire.messages.cluster_map import NodeEntry, PartitionEntry
from wire.messages.control import encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.nodes import Moved
from wire.messages.routes import RoutesAdded
from wire.messages.sessions import (
    InboundRecorded,
    RecordInbound,
    ReleaseInbound,
    SessionOpened,
    SessionSubscribed,
)


def test_ungated_push_is_not_overtaken_without_a_lease() -> None:
    """Simulation seed 20059: without a lease no output leaves; after the next lease the earlier push was sent last."""
    store = ModelStore.open(ModelDisk(), "cluster", "s1", STORE_SETTINGS)
    partition = Partition(0, PartitionSettings(), store, {}, 0.0)
    session = DurableSession(1, "alice")
    session.edge = "e1"
    partition.push(session, b"first", settled=True)
    partition.put(b"row", b"of the second")
    partition.push(session, b"second")
    partition.close_operation()
    partition.push(session, b"third", settled=True)  # committed, but an earlier push is not
    partition.close_operation()
    assert partition.meta.op_index == 1
    partition.note_synced("", 1)  # the iteration in which outputs may leave again
    pushes = [b"first", b"second", b"third"]
    assert partition.committed_outputs() == [("e1", FrameKind.PUSH, payload) for payload in pushes]
    assert partition.committed_outputs() == []


def test_qos0_waiting_for_a_commit_is_bounded() -> None:
    """With too few copies in sync commits stop for hours: later QoS 0 messages are dropped, all others stay."""
    store = ModelStore.open(ModelDisk(), "cluster", "s1", STORE_SETTINGS)
    partition = Partition(0, PartitionSettings(), store, {}, 0.0)
    session = DurableSession(1, "alice")
    session.edge = "e1"
    partition.acknowledges = False
    sent = 0
    for turn in range(10):
        partition.put(b"row", b"%d" % turn)
        partition.push(session, b"kept")
        sent += sum(partition.push_unqueued(session, bytes(100_000)) for _ in range(10))
        partition.close_operation()
        partition.note_synced("", turn + 1)
        assert partition.committed_outputs() == []
    assert sent * 100_000 <= QOS0_BYTES_MAX < (sent + 1) * 100_000
    partition.acknowledges = True
    partition.note_synced("", 10)
    assert len(partition.committed_outputs()) == 10 + sent
    assert partition.push_unqueued(session, bytes(100_000))
    partition.close_operation()
    assert len(partition.committed_outputs()) == 1


def test_open_subscribe_publish_acknowledge() -> None:
    """The whole path of one message to a connected durable session."""
    cluster, edge = with_edge()
    alice = edge.open("alice")
    assert alice.session and not edge.answers(SessionOpened)[0].session_present
    edge.subscribe(alice, "a/#")
    assert edge.answers(SessionSubscribed)
    tag = edge.publish(message("hello"), alice.session >> 48)
    cluster.settle()
    assert edge.acked == {tag: 0}
    assert [(push.payload, push.qos, push.packet_identifier) for push in alice.received] == [(b"hello", 1, 1)]
    edge.acknowledge(alice.received[0], 4)
    cluster.run(0.5)
    core: StorageCore = cluster.nodes["s1"].core
    assert core.partition_metrics.queued() == 0
    cluster.crash_all()
    assert cluster.nodes["s1"].core.partition_metrics.queued() == 0


def test_released_identifier_keeps_its_counter_after_a_crash() -> None:
    """The highest inbound counter was released while a lower one is in use: it is never reused (S-5)."""
    cluster, edge = with_edge()
    alice = edge.open("alice")
    partition = alice.session >> 48

    def record(packet_identifier: int) -> int:
        request = next(edge.requests)
        edge.ask(
            RecordInbound(
                request, partition, edge.epoch(partition), alice.session, alice.owner_epoch, packet_identifier
            )
        )
        cluster.settle()
        answer = edge.answers(InboundRecorded)[-1]
        assert answer.request == request
        return int(answer.counter)

    def release(packet_identifier: int) -> None:
        request = next(edge.requests)
        edge.ask(
            ReleaseInbound(
                request, partition, edge.epoch(partition), alice.session, alice.owner_epoch, packet_identifier
            )
        )
        cluster.settle()

    assert (record(1), record(2), record(1)) == (1, 2, 1)
    release(2)
    cluster.crash_all()
    assert record(1) == 1
    assert record(2) == 3


def test_acknowledgements_in_flight_to_a_dead_primary_are_repeated() -> None:
    """S-20: the client never repeats them on a live connection; the edge repeats them for the new primary."""
    cluster, edge = with_edge()
    alice = edge.open("alice", "a/#", receive_maximum=4)
    for number in range(8):
        edge.publish(message(str(number), qos=1 + number % 2), alice.session >> 48)
    cluster.settle()
    for push in list(alice.received):
        edge.acknowledge(push, 4 if push.qos == 1 else 5)
    cluster.crash_all()
    for push in [push for push in alice.received if push.pubrel]:
        edge.acknowledge(push, 7)
    cluster.crash_all()
    cluster.run(0.5)
    assert [push.payload for push in alice.received if not push.pubrel] == [str(n).encode() for n in range(8)]


def test_routes_added_for_an_unrequested_shard_is_ignored() -> None:
    """For any shard number, even one that no map has, the node continues and accepts the valid reply."""
    cluster, edge = with_edge(shards=2)
    alice = edge.open("alice")
    cluster.router.routes_answered = False
    request = edge.subscribe(alice, "a/#")
    (asked,) = cluster.router.added
    for shard in (60_000, (asked.shard + 1) % len(cluster.map.shards)):
        cluster.tell("s1", RoutesAdded(asked.request, shard, asked.shard_epoch, asked.sender_epoch))
    cluster.settle()
    assert request in edge.asked
    cluster.router.answer("s1", asked)
    cluster.settle()
    assert request not in edge.asked


def test_unsubscribe_before_suback_answers_both_and_ignores_late_routes_added() -> None:
    """The SUBACK is not lost, and RoutesAdded from before the removal does not confirm the new registration."""
    cluster, edge = with_edge()
    alice = edge.open("alice")
    cluster.router.routes_answered = False
    first = edge.subscribe(alice, "a/#")
    assert first in edge.asked
    edge.unsubscribe(alice, "a/#")
    cluster.settle()
    assert not edge.asked
    late = cluster.router.added[0]
    again = edge.subscribe(alice, "a/#")
    cluster.router.answer("s1", late)
    cluster.settle()
    assert again in edge.asked
    cluster.router.routes_answered = True
    cluster.run(2.5)
    assert again not in edge.asked


def test_routes_added_for_the_former_primary_is_ignored() -> None:
    """It arrives over the link of the node's next incarnation, whose requests have the same numbers."""
    cluster, edge = with_edge()
    alice = edge.open("alice", "a")
    cluster.router.routes_answered = False
    cluster.router.added.clear()
    edge.subscribe(alice, "b")
    late = cluster.router.added[-1]
    cluster.crash_all()
    request = edge.subscribe(alice, "c")
    assert late.request in [
        item.request for item in cluster.router.added if [entry.topic_filter for entry in item.routes] == ["c"]
    ]
    cluster.router.answer("s1", late)
    cluster.settle()
    assert request in edge.asked


def test_late_routes_added_for_a_retried_request_is_accepted() -> None:
    """If each retry had a new number, replies of an owner slower than the retry interval would never count."""
    cluster, edge = with_edge()
    alice = edge.open("alice")
    cluster.router.routes_answered = False
    request = edge.subscribe(alice, "a/b")
    cluster.run(3.0)
    assert len(cluster.router.added) > 1
    first = cluster.router.added[0]
    cluster.router.answer("s1", first)
    cluster.settle()
    assert request not in edge.asked


def test_outputs_wait_for_the_sync() -> None:
    """While the disk hangs, no reply, acknowledgement or push is sent."""
    cluster, edge = with_edge()
    alice = edge.open("alice", "a/#")
    cluster.nodes["s1"].disk_slow = True
    edge.publish(message(), alice.session >> 48)
    bob = edge.open("bob", settle=False)
    cluster.run(0.3)
    assert not edge.acked and not alice.received and not bob.owner_epoch
    cluster.nodes["s1"].disk_slow = False
    cluster.settle()
    assert edge.acked and alice.received and bob.owner_epoch


def test_full_queue_drops_the_oldest_or_refuses() -> None:
    """drop_oldest counts dropped entries; refuse drops none and replies 0x97."""
    cluster, edge = with_edge(settings=with_settings(queue_messages_max=5))
    alice = edge.open("alice", "a/#")
    edge.close(alice)
    for number in range(8):
        edge.publish(message(str(number), origin_a=10, origin_b=700 + number), alice.session >> 48)
    cluster.settle()
    assert cluster.nodes["s1"].core.event_counts()["dropped_queue_full"] == 3
    (entry,) = cluster.nodes["s1"].core.placements.journal.entries  # one for each client and second
    assert (entry.event, entry.client_id, entry.topic, entry.detail) == ("drop", "alice", "a/b", "entry 1, the oldest")
    assert entry.origin == (0, 10, 700)
    alice = edge.open("alice")
    assert [push.payload for push in alice.received] == [b"3", b"4", b"5", b"6", b"7"]
    cluster, edge = with_edge(settings=with_settings(queue_messages_max=5, queue_full="refuse"))
    alice = edge.open("alice", "a/#")
    edge.close(alice)
    tags = [edge.publish(message(str(number)), alice.session >> 48) for number in range(8)]
    cluster.settle()
    assert [edge.acked[tag] for tag in tags] == [0] * 5 + [0x97] * 3


def test_sessions_expire_by_the_served_clock_only() -> None:
    """An outage longer than the expiry deletes no session; the same served time does, with every row."""
    cluster, edge = with_edge()
    alice = edge.open("alice", "a/#", expiry_s=5)
    edge.close(alice)
    edge.publish(message(), alice.session >> 48)
    cluster.settle()
    cluster.kill("s1", declare=False)
    cluster.run(1000)
    cluster.start("s1")
    cluster.settle()
    assert edge.open("alice", expiry_s=5).session == alice.session
    edge.close(edge.connections["alice"])
    cluster.run(6.0)
    assert cluster.nodes["s1"].core.partition_metrics.session_counts() == {"connected": 0, "absent": 0}
    left = {key[2:3] for key in cluster.disks["s1"].records if key[2:3] in b"sqxufi"}
    assert not left
    assert edge.open("alice").session != alice.session


def test_served_clock_excludes_a_stopped_process() -> None:
    """Nor does it reset earlier served time: the partition was idle since its session closed."""
    cluster, edge = with_edge()
    edge.close(edge.open("alice", expiry_s=9))
    cluster.run(5.0)
    cluster.nodes["s1"].pause()
    cluster.run(1000)
    cluster.nodes["s1"].resume()
    cluster.run(3.0)
    assert cluster.nodes["s1"].core.partition_metrics.session_counts()["absent"] == 1
    cluster.run(2.0)
    assert cluster.nodes["s1"].core.partition_metrics.session_counts()["absent"] == 0


def test_session_expiry_begins_with_the_death_of_the_edge() -> None:
    """However long the partition was idle."""
    cluster = Cluster()
    cluster.edges["e1"].open("alice", expiry_s=5)
    cluster.run(8.0)
    cluster.kill_edge("e1")
    cluster.run(4.0)
    assert cluster.nodes["s1"].core.partition_metrics.session_counts()["absent"] == 1
    cluster.run(2.0)
    assert cluster.nodes["s1"].core.partition_metrics.session_counts()["absent"] == 0


def test_the_served_clock_is_saved_while_deadlines_are_pending() -> None:
    """Repeated crashes do not delay an expiry indefinitely."""
    cluster, edge = with_edge()
    edge.close(edge.open("alice", expiry_s=40))
    for _ in range(4):
        cluster.run(15.0)
        cluster.crash_all()
    cluster.run(5.0)
    assert cluster.nodes["s1"].core.partition_metrics.session_counts()["absent"] == 0


def test_queued_messages_expire() -> None:
    """Expired entries are dropped and counted; the others are sent with their remaining time [MQTT-3.3.2-6]."""
    cluster, edge = with_edge()
    alice = edge.open("alice", "a/#")
    edge.close(alice)
    edge.publish(message("short", expiry_s=2), alice.session >> 48)
    edge.publish(message("long", expiry_s=100), alice.session >> 48)
    cluster.run(5.0)
    alice = edge.open("alice")
    assert [(push.payload, 93 <= push.expiry_s <= 96) for push in alice.received] == [(b"long", True)]
    assert cluster.nodes["s1"].core.event_counts()["dropped_expired"] == 1


def test_large_and_shared_bodies_are_stored_once() -> None:
    """1 MiB travels in pieces; a body shared by two sessions is stored once and deleted with its last reference."""
    cluster, edge = with_edge(partitions=1)
    clients = [edge.open(name) for name in ("alice", "bob")]
    for client in clients:
        edge.subscribe(client, "a/#")
        edge.close(client)
    payload = bytes(range(256)) * 4096
    edge.publish(PublishMessage(0, b"a/b", payload, 1), 0)
    cluster.settle()
    records = cluster.disks["s1"].records
    assert sum(1 for key in records if key[2:3] == b"b") == 4
    cluster.crash_all()
    for name in ("alice", "bob"):
        client = edge.open(name)
        assert [push.payload for push in client.received] == [payload]
        edge.acknowledge(client.received[0], 4)
    cluster.run(0.5)
    assert not any(key[2:3] in (b"b", b"q") for key in records)


def test_shared_group_alternates_and_queues_for_disconnected_members() -> None:
    """One member gets each message; with all members disconnected, a durable member's queue stores QoS 1."""
    cluster, edge = with_edge(partitions=1)
    clients = [edge.open(name) for name in ("alice", "bob")]
    for client in clients:
        edge.subscribe(client, "$share/g/a/#")
    for number in range(4):
        edge.publish(message(str(number), share=b"g/a/#"), 0)
    cluster.settle()
    assert [len(client.received) for client in clients] == [2, 2]
    for client in clients:
        edge.close(client)
    edge.publish(message("kept", share=b"g/a/#"), 0)
    cluster.settle()
    assert cluster.nodes["s1"].core.partition_metrics.queued() == 5
    assert any(entry.members == 2 for added in cluster.router.added for entry in added.routes)


def test_origins_of_publishing_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session that was silent longest is forgotten, in memory and on disk, and that is counted."""
    monkeypatch.setattr("storage.messages.origins.SESSION_ORIGINS_MAX", 3)
    cluster, edge = with_edge(partitions=1)
    for sender in (1, 2, 3, 1, 4):
        edge.publish(message(qos=2, origin_kind=1, origin_a=sender, origin_b=next(cluster.numbers)), 0)
    cluster.settle()
    core = cluster.nodes["s1"].core
    assert core.event_counts()["origins_forgotten"] == 1
    kept = sorted(int.from_bytes(key[4:12], "big") for key in cluster.disks["s1"].records if key[2:4] == b"o\x01")
    assert kept == [1, 3, 4]


def test_large_store_is_loaded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in one iteration, it could outlast the lease; loaded partitions serve while the rest is being read."""
    monkeypatch.setattr(placements, "LOADED_PER_ITERATION", 1)
    cluster, edge = with_edge(partitions=8)
    for number in range(32):
        edge.open(f"client {number}", settle=False)
    cluster.settle()
    cluster.kill("s1", declare=False)
    cluster.start("s1")
    core: StorageCore = cluster.nodes["s1"].core
    seen = set()
    while not (core.partitions and core.serving):
        cluster.step()
        loaded = sum(core.placements.loaded(number) for number in core.partitions)
        assert core.loading == bool(loaded < 8 and core.partitions)
        seen.add((loaded, any(hosted.serving for hosted in core.partitions.values())))
    assert {loaded for loaded, _ in seen} >= set(range(1, 9))
    assert any(serving and loaded < 8 for loaded, serving in seen)
    assert sum(core.partition_metrics.session_counts().values()) == 32


def test_heartbeats_contain_partition_sizes_and_unreachable_nodes() -> None:
    """A rebalance uses the sizes, the leader ends a deadlock by the unreachable nodes."""
    cluster, edge = with_edge(nodes=2, replicas=2, min_in_sync=1)
    alice = edge.open("alice", "a/#")
    edge.close(alice)
    for number in range(5):
        edge.publish(message(str(number)), alice.session >> 48)
    primary = cluster.primary(alice.session >> 48)
    cluster.run(13.0)
    keys, size = primary.core.lease.sizes[alice.session >> 48]
    assert keys == 7  # session, subscription, queue
    assert size > 256
    other = next(name for name in cluster.nodes if name != primary.core.node)
    assert other not in primary.core.lease.unreachable
    cluster.cut(primary.core.node, other)
    cluster.run(3.0)
    assert other in primary.core.lease.unreachable


def test_partition_counters_stay_with_their_node() -> None:
    """A process's counter never decreases, neither when its partition moves away, nor when it comes back."""
    cluster, edge = with_edge(nodes=2, replicas=2, partitions=1)
    alice = edge.open("alice", "a/#")
    edge.publish(message(), alice.session >> 48)
    cluster.settle()
    first = cluster.map.partitions[0].primary
    core = cluster.nodes[first].core
    seen = dict(core.event_counts())
    assert seen["opened"] == 1
    for primary in (*(name for name in cluster.nodes if name != first), first):
        placement = cluster.map.partitions[0]
        moved = PartitionEntry(placement.epoch + 1, primary, placement.in_sync)
        assert not cluster.apply(PlacePartitions({0: moved}))
        cluster.settle()
        now = core.event_counts()
        assert not {name: (count, now.get(name, 0)) for name, count in seen.items() if now.get(name, 0) < count}
        edge.open("alice")
        seen = dict(core.event_counts())
    assert seen["opened"] == 2


def test_routes_added_by_a_router_without_the_shard_is_refused() -> None:
    """A router of the same group sends the request number and the epoch: it is refused."""
    cluster, edge = with_edge()
    alice = edge.open("alice")
    cluster.router.routes_answered = False
    other = PeerKey("r2", "router", 1)
    assert not cluster.router.apply(RegisterNode(NodeEntry(other.node, other.tier, other.incarnation, "r2:1"), True))
    cluster.settle()
    request = edge.subscribe(alice, "a/#")
    asked = next(asked for asked in cluster.router.added if asked.request)
    owner = cluster.map.shards[asked.shard].owner
    sender = other if owner == ROUTER else cluster.router.key
    forged = RoutesAdded(asked.request, asked.shard, asked.shard_epoch, asked.sender_epoch)
    for answer in (forged, Moved(asked.request, "shard", asked.shard, 9)):
        cluster.send(sender, "s1", FrameKind.CONTROL, encode_control(answer))
    cluster.settle()
    assert request in edge.asked
    assert cluster.nodes["s1"].core.counts["refused_placement"] == 2
