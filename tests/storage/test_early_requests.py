"""What reaches a node before its map says that it is the primary."""

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
    """Return two nodes with one partition, the edge that publishes, who is subscribed to a/#, primary and backup."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1)
    alice = cluster.edges["e1"].open("alice", "a/#")
    return cluster, cluster.edges["e2"], alice, cluster.map.partitions[0].in_sync


@pytest.mark.parametrize("dies", [True, False])
def test_what_waited_for_the_map_is_dropped_when_its_edge_has_died_meanwhile(dies: bool) -> None:
    """Simulation seed 10152: a dead edge's message was taken behind newer ones that its client sent elsewhere."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1)
    former, other = cluster.edges["e2"], cluster.edges["e1"]
    primary, backup = cluster.map.partitions[0].in_sync
    early = retained("t", "early")
    early.tag, early.partitions, early.epochs = 1, (0,), (former.epoch(0) + 1,)  # of the map that is to come
    cluster.filter = _no_replies_to(backup)  # it cannot know whose map was the older one
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


def test_what_waited_until_its_partition_serves_is_dropped_when_its_edge_has_died_meanwhile() -> None:
    """Simulation seed 66076: it was taken when the edge's origins were forgotten, and a topic went back to it."""
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
    cluster.kill(primary)  # the other one polls e1, gets no answer, and does not serve
    cluster.run(1.0)
    cluster.kill_edge("e2")
    cluster.run(0.1)
    cluster.filter = lambda *_: True
    cluster.run(0.5)  # it polls again
    assert cluster.primary(0).key.node == backup
    assert [message.payload for message in read(cluster, "#")] == [b"newer"]


def test_what_waits_is_not_taken_when_its_publisher_s_next_connection_was_refused() -> None:
    """Too many wait until the partition serves; its publisher was told that the message is not accepted."""
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


def test_what_follows_a_message_that_could_not_wait_is_refused_too() -> None:
    """Too many wait until the partition serves; the refused one may come again on its publisher's next connection."""
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


def test_a_replay_of_what_was_committed_is_not_said_to_be_refused() -> None:
    """Too many wait until the partition serves: what has no room may stand, and 0x88 says no more than that."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1, settings=with_settings(waiting_opens_max=1))
    publisher, other = cluster.edges["e2"], cluster.edges["e1"]
    alice = other.open("alice", "a/#")
    primary, backup = cluster.map.partitions[0].in_sync
    cluster.filter = lambda _, target, kind, __: (target, kind) != ("e2", FrameKind.PUBLISH_ACK)
    publisher.publish(message("first"), 0)
    again = publisher.publish(message("again"), 0)
    cluster.settle()
    cluster.filter = lambda source, target, kind, _: (source.node, target, kind) != ("e1", backup, FrameKind.CONTROL)
    cluster.kill(primary)  # the other one polls e1, gets no answer, and does not serve
    cluster.run(1.0)
    assert publisher.acked == {again: 0x88}
    assert [push.payload for push in alice.received] == [b"first", b"again"]


def test_what_waited_for_the_map_is_not_overtaken_by_what_comes_with_it() -> None:
    """The later one was taken first, earlier ones were repeats then: acknowledged and lost (perhaps seed 10175)."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1)
    publisher = cluster.start_edge("z1")  # what an edge of this name sends arrives behind the map in each round
    alice = cluster.edges["e1"].open("alice", "a/#")
    primary, backup = cluster.map.partitions[0].in_sync
    cluster.silence(backup)  # it does not hear yet that it is the primary
    cluster.kill(primary)
    first = publisher.publish(message("first"), 0)
    cluster.run(0.1)
    cluster.end_silence()
    second = publisher.publish(message("second"), 0)
    cluster.settle()
    assert cluster.primary(0).key.node == backup
    assert [push.payload for push in alice.received] == [b"first", b"second"]
    assert publisher.acked == {first: 0, second: 0}


def test_what_waited_for_the_map_is_forgotten_when_its_edge_s_was_the_older_one() -> None:
    """Simulation seed 64116: the primary refused it, its publisher heard so, and it was delivered all the same."""
    cluster, publisher, alice, (primary, backup) = pair()
    cluster.nodes[primary].disk.full = True
    refused = message("refused")
    tag = publisher.publish(refused, 0)
    cluster.send(publisher.key, backup, FrameKind.PUBLISH, encode_message(refused))  # of when it was the primary
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


def test_what_waited_for_a_newer_map_is_not_forgotten_by_an_answer_of_before() -> None:
    """The answer says which map was the newest when its heartbeat left; what came since may know a newer one."""
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


def test_what_waited_until_its_partition_serves_waits_for_the_next_time_too() -> None:
    """Simulation seed 76041: dropped at a map of two steps; its edge, which knew of both, never sent it again."""
    cluster, publisher, alice, (primary, backup) = pair()
    cluster.filter = lambda source, target, kind, _: (source.node, target, kind) != ("e1", backup, FrameKind.CONTROL)
    cluster.kill(primary)  # the other one polls e1, gets no answer, and does not serve
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


def test_what_waits_too_long_for_the_map_is_refused_and_not_lost() -> None:
    """It was dropped without an answer; its repeat behind a later message was acknowledged, and reached nobody."""
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


def test_a_message_between_the_epochs_that_a_node_skips_is_taken_when_it_is_repeated() -> None:
    """The node missed a step and reads the whole map; the edge repeats under each epoch that it learns of."""
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
