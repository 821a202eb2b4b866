"""Requests that reach a node before its map makes it the primary."""

from collections.abc import Callable

import msgspec
import pytest

from mqtt.reasons import ReasonCode
from router.map.commands import PlacePartitions
from storage.hosting.pending_until_map import EARLY_S
from tests.storage.requests import message, read, retained
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import ROUTER, Cluster, with_settings
from wire.messages.batches import encode_message
from wire.messages.control import decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_ROUTER, PeerKey
from wire.messages.nodes import HeartbeatReply, MapPage, MapStep, Moved
from wire.messages.retained import ReadRetained


def _no_replies_to(node: str) -> Callable[[PeerKey, str, int, bytes], bool]:
    """Drop the answers to a node's heartbeats."""

    def passes(source: PeerKey, target: str, _: int, payload: bytes) -> bool:
        answers = source.tier == TIER_ROUTER and target == node
        return not answers or not isinstance(decode_control(payload), HeartbeatReply)

    return passes


def pair() -> tuple[Cluster, Edge, Connection, tuple[str, ...]]:
    """Return two nodes with one partition, the publishing edge, a subscriber of a/#, primary and backup."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1)
    alice = cluster.edges["e1"].open("alice", "a/#")
    return cluster, cluster.edges["e2"], alice, cluster.map.partitions[0].in_sync


@pytest.mark.parametrize("dies", [True, False])
def test_message_pending_until_map_is_dropped_after_its_edge_died(dies: bool) -> None:
    """Simulation seed 10152: a dead edge's message was stored after newer ones of its client's next edge."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1)
    former, other = cluster.edges["e2"], cluster.edges["e1"]
    primary, backup = cluster.map.partitions[0].in_sync
    early = retained("t", "early")
    early.tag, early.partitions, early.epochs = 1, (0,), (former.epoch(0) + 1,)  # of the next map
    cluster.filter = _no_replies_to(backup)  # it cannot know which map is older
    cluster.send(former.key, backup, FrameKind.PUBLISH, encode_message(early))
    cluster.run(0.1)
    if dies:
        cluster.kill_edge("e2")
        cluster.settle()
    other.publish(retained("t", "newer"), 0)
    cluster.settle()
    assert [message.payload for message in read(cluster, "#")] == [b"newer"]
    cluster.kill(primary)
    cluster.step()
    cluster.filter = lambda *_: True
    cluster.settle()
    assert cluster.primary(0).key.node == backup
    assert [message.payload for message in read(cluster, "#")] == [b"newer" if dies else b"early"]


def test_message_pending_until_serving_is_dropped_after_its_edge_died() -> None:
    """Simulation seed 66076: accepted after the edge's origins were forgotten, it reverted a topic's value."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1)
    former, other = cluster.edges["e2"], cluster.edges["e1"]
    primary, backup = cluster.map.partitions[0].in_sync
    cluster.filter = lambda _, target, kind, __: (target, kind) != ("e2", FrameKind.PUBLISH_ACK)
    former.publish(retained("t", "older"), 0)
    cluster.settle()
    other.publish(retained("t", "newer"), 0)
    cluster.settle()
    assert former.acked == {}
    cluster.filter = lambda source, target, kind, _: (source.node, target, kind) != ("e1", backup, FrameKind.CONTROL)
    cluster.kill(primary)  # the other one polls e1, gets no reply, and does not serve
    cluster.run(1.0)
    cluster.kill_edge("e2")
    cluster.run(0.1)
    cluster.filter = lambda *_: True
    cluster.run(0.5)  # it polls again
    assert cluster.primary(0).key.node == backup
    assert [message.payload for message in read(cluster, "#")] == [b"newer"]


def test_pending_message_is_dropped_after_a_newer_connection_was_refused() -> None:
    """The pending queue is full; its publisher was informed of the refusal."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1, settings=with_settings(waiting_opens_max=1))
    former, newer = cluster.edges["e2"], cluster.edges["e1"]
    alice = newer.open("alice", "a/#")
    primary, backup = cluster.map.partitions[0].in_sync
    cluster.filter = lambda source, target, kind, _: (source.node, target, kind) != ("e1", backup, FrameKind.CONTROL)
    cluster.kill(primary)
    cluster.run(1.0)
    waiting = former.publish(message("m", session=77, owner_epoch=1), 0)
    cluster.run(0.1)
    refused = newer.publish(message("m", session=77, owner_epoch=2), 0)
    cluster.run(0.1)
    assert newer.acked[refused] == 0x88
    cluster.filter = lambda *_: True
    cluster.run(0.5)
    assert former.acked[waiting] == 0x8E
    assert alice.received == []


def test_messages_after_a_refused_pending_message_are_refused() -> None:
    """The pending queue is full; the refused message may come again on its publisher's next connection."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1, settings=with_settings(waiting_opens_max=1))
    publisher, other = cluster.edges["e2"], cluster.edges["e1"]
    alice = other.open("alice", "a/#")
    primary = cluster.machine.map.partitions[0].primary
    (backup,) = cluster.nodes.keys() - {primary}
    cluster.filter = lambda source, target, kind, _: (source.node, target, kind) != ("e1", backup, FrameKind.CONTROL)
    cluster.kill(primary)
    cluster.run(1.0)
    waiting = publisher.publish(message("waits", session=78, owner_epoch=1), 0)
    refused = publisher.publish(message("first", session=77, owner_epoch=1), 0)
    cluster.run(0.1)
    assert publisher.acked == {refused: 0x88}
    cluster.filter = lambda *_: True
    cluster.run(0.5)
    behind = publisher.publish(message("behind", session=77, owner_epoch=1), 0)
    cluster.run(0.1)
    again = publisher.publish(message("first", session=77, owner_epoch=2), 0)
    cluster.run(0.1)
    assert publisher.acked == {waiting: 0, refused: 0x88, behind: 0x89, again: 0}
    assert [push.payload for push in alice.received] == [b"waits", b"first"]


def test_refused_pending_repeat_is_answered_with_server_unavailable() -> None:
    """The pending queue is full: the message may be stored, and 0x88 reports no more than that."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1, settings=with_settings(waiting_opens_max=1))
    publisher, other = cluster.edges["e2"], cluster.edges["e1"]
    alice = other.open("alice", "a/#")
    primary, backup = cluster.map.partitions[0].in_sync
    cluster.filter = lambda _, target, kind, __: (target, kind) != ("e2", FrameKind.PUBLISH_ACK)
    publisher.publish(message("first"), 0)
    again = publisher.publish(message("again"), 0)
    cluster.settle()
    cluster.filter = lambda source, target, kind, _: (source.node, target, kind) != ("e1", backup, FrameKind.CONTROL)
    cluster.kill(primary)  # the other one polls e1, gets no reply, and does not serve
    cluster.run(1.0)
    assert publisher.acked == {again: 0x88}
    assert [push.payload for push in alice.received] == [b"first", b"again"]


def test_message_pending_until_map_is_not_overtaken() -> None:
    """The later one was accepted first, so earlier ones counted as repeats and were lost (perhaps seed 10175)."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1)
    publisher = cluster.start_edge("z1")  # frames of an edge with this name arrive after the map in each iteration
    alice = cluster.edges["e1"].open("alice", "a/#")
    primary, backup = cluster.map.partitions[0].in_sync
    cluster.silence(backup)  # it does not know yet that it is the primary
    cluster.kill(primary)
    first = publisher.publish(message("first"), 0)
    cluster.run(0.1)
    cluster.end_silence()
    second = publisher.publish(message("second"), 0)
    cluster.settle()
    assert cluster.primary(0).key.node == backup
    assert [push.payload for push in alice.received] == [b"first", b"second"]
    assert publisher.acked == {first: 0, second: 0}


def test_message_pending_until_map_of_an_older_map_is_forgotten() -> None:
    """Simulation seed 64116: the primary refused it and its publisher was informed, but it was delivered."""
    cluster, publisher, alice, (primary, backup) = pair()
    cluster.nodes[primary].disk.full = True
    refused = message("refused")
    tag = publisher.publish(refused, 0)
    cluster.send(publisher.key, backup, FrameKind.PUBLISH, encode_message(refused))  # of its epoch as primary
    cluster.settle()
    assert publisher.acked[tag] >= 0x80
    cluster.run(1.0)  # a heartbeat and its answer
    cluster.kill(primary)
    cluster.settle()
    assert cluster.primary(0).key.node == backup
    assert alice.received == []
    taken = publisher.publish(message("taken"), 0)
    cluster.settle()
    assert publisher.acked[taken] == 0
    assert [push.payload for push in alice.received] == [b"taken"]


def test_message_pending_until_map_survives_an_earlier_heartbeat_reply() -> None:
    """The reply contains the newest map at the time of its heartbeat; later requests may know a newer one."""
    cluster, publisher, alice, (primary, backup) = pair()
    core = cluster.nodes[backup].core
    cluster.run(1.0)
    epoch, before = cluster.map.epoch, core.lease.newest_at
    cluster.silence(backup)
    cluster.kill(primary)
    cluster.step()
    ahead = publisher.publish(message("ahead"), 0)
    cluster.run(0.05)
    answer = HeartbeatReply(core.lease.entry.incarnation, before, 2.0, epoch, ROUTER, map_epoch=epoch)
    cluster.nodes[backup].receive(cluster.router.key, FrameKind.CONTROL, encode_control(answer))
    cluster.step()
    assert core.lease.newest_at == before
    cluster.end_silence()
    cluster.settle()
    assert publisher.acked[ahead] == 0
    assert [push.payload for push in alice.received] == [b"ahead"]


def test_message_pending_until_serving_is_requeued_for_the_next_epoch() -> None:
    """Simulation seed 76041: dropped at a map of two steps; its edge, which had both, never sent it again."""
    cluster, publisher, alice, (primary, backup) = pair()
    cluster.filter = lambda source, target, kind, _: (source.node, target, kind) != ("e1", backup, FrameKind.CONTROL)
    cluster.kill(primary)  # the other one polls e1, gets no reply, and does not serve
    cluster.run(1.0)
    cluster.start(primary)
    cluster.run(0.5)
    cluster.silence(backup)
    place(cluster, primary)
    place(cluster, backup)
    tag = publisher.publish(message("kept"), 0)
    cluster.run(0.1)
    cluster.end_silence()
    cluster.filter = lambda *_: True
    cluster.settle()
    assert cluster.primary(0).key.node == backup
    assert publisher.acked == {tag: 0}
    assert [push.payload for push in alice.received] == [b"kept"]


def test_overdue_message_pending_until_map_is_refused() -> None:
    """It was dropped without a reply; its repeat after a later message was acknowledged and lost."""
    cluster, publisher, alice, (primary, _) = pair()
    cluster.filter = _no_maps_to(primary)
    place(cluster, primary)
    waiting = publisher.publish(message("waits", session=77, owner_epoch=1), 0)
    asked = publisher.ask(ReadRetained(*publisher.head(0), "t"))
    cluster.run(EARLY_S + 1.0)
    assert publisher.acked == {waiting: ReasonCode.SERVER_UNAVAILABLE}
    assert [message.request for message in publisher.controls if isinstance(message, Moved)] == [asked]
    behind = publisher.publish(message("behind", session=77, owner_epoch=1), 0)
    other = publisher.publish(message("other", session=78, owner_epoch=1), 0)
    cluster.filter = lambda *_: True
    cluster.run(3.0)  # the node requests the map again
    again = publisher.publish(message("waits", session=77, owner_epoch=2), 0)
    cluster.settle()
    assert publisher.acked[behind] >= 0x80 and publisher.acked[other] == publisher.acked[again] == 0
    assert [push.payload for push in alice.received] == [b"other", b"waits"]


def test_message_of_a_skipped_epoch_is_accepted_when_repeated() -> None:
    """The node missed a step and reads the whole map; the edge repeats the message under each new epoch."""
    cluster, publisher, alice, (primary, _) = pair()
    cluster.filter = _no_maps_to(primary)
    place(cluster, primary)
    between = publisher.publish(message("between"), 0)
    cluster.run(0.1)
    cluster.filter = lambda *_: True
    place(cluster, primary)
    cluster.settle()
    assert cluster.nodes[primary].core.counts["map_reads_whole"] == 1
    assert cluster.nodes[primary].core.counts["publishes_of_former_times"] == 1
    assert publisher.acked == {between: 0}
    assert [push.payload for push in alice.received] == [b"between"]


def _no_maps_to(node: str) -> Callable[[PeerKey, str, int, bytes], bool]:
    """Lose the steps and the pages of the map for a node."""

    def passes(source: PeerKey, target: str, _: int, payload: bytes) -> bool:
        told = source.tier == TIER_ROUTER and target == node
        return not told or not isinstance(decode_control(payload), MapStep | MapPage)

    return passes


def place(cluster: Cluster, node: str) -> None:
    """Make a node the primary."""
    entry = cluster.map.partitions[0]
    moved = msgspec.structs.replace(entry, primary=node, in_sync=tuple(cluster.nodes), epoch=entry.epoch + 1)
    assert not cluster.apply(PlacePartitions({0: moved}))
