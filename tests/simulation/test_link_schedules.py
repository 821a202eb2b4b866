"""Schedules C1 to C8, D1 and D2 (C5 concerns a lease): broken links, late frames, unreachable nodes."""

import pytest

from router.map.commands import PlacePartitions, SetAdminState
from storage.hosting.pending_until_map import EARLY_S
from tests.simulation.scene import EPHEMERAL, Scene
from tests.simulation.schedule_options import PATIENT
from wire.messages.cluster_map import PartitionEntry


def test_c1_links_break_without_a_map_change() -> None:
    scene = Scene(edges=2)
    publisher = scene.client("publisher", "e1")
    durable = scene.client("durable", "e2", None, "t/#")
    ephemeral = scene.client("ephemeral", "e2", EPHEMERAL, "t/#", qos=1)
    sent = []
    for number in range(30):
        for other in ("e2", "s1"):
            scene.network.break_between("e1", other)
            scene.run(0.0007)
        if publisher.publish("t/x", f"m{number}", 1 + number % 2):
            sent.append(f"m{number}")
        scene.run(0.05)
    scene.until(lambda: not publisher.publishing, 20.0)
    scene.until(lambda: len(durable.received) >= len(sent) and len(ephemeral.received) >= len(sent))
    assert durable.received == ephemeral.received == sent
    scene.judge()


def test_c2_frame_older_than_the_release() -> None:
    """Also S9: the old edge's copy of a released QoS 2 message is a repeat."""
    scene = Scene(edges=2, storages=2, replicas=2, partitions=8)
    publisher = scene.client("publisher", "e1", client_id=scene.name_on("s1", "p"))
    subscriber = scene.client("subscriber", "e2", None, "t/x", client_id=scene.name_on("s2", "q"))
    scene.publish(publisher, "t/x", "warm")
    scene.cut("e1", "s2")
    publisher.publish("t/x", "stuck", 2)
    scene.run(0.2)
    assert publisher.publishing
    publisher.drop()
    scene.connect(publisher, "e2")
    scene.until(lambda: not publisher.publishing and not publisher.session.outbound)
    scene.heal("e1", "s2")
    scene.run(3.0)
    scene.publish(publisher, "t/x", "last", 2)
    scene.until(lambda: "last" in subscriber.received)
    assert subscriber.received == ["warm", "stuck", "last"]
    scene.judge()


@pytest.mark.parametrize(("planned", "qos"), [(True, 0), (True, 1), (False, 1)])
def test_c3_two_primaries_push_to_one_edge(planned: bool, qos: int) -> None:
    """The former primary's pushes are in flight when the next one sends the same and more."""
    scene = Scene(edges=2, storages=2, replicas=2, min_in_sync=1, partitions=1)
    placement = scene.map.partitions[0]
    primary = placement.primary
    other = next(name for name in placement.in_sync if name != primary)
    publisher = scene.client("publisher", "e1")
    subscriber = scene.client("subscriber", "e2", None, "t/x")
    scene.publish(publisher, "t/x", "warm")  # e1 caches the topic
    scene.until(lambda: subscriber.received)
    scene.network.jam(primary, "e2")
    scene.publish(publisher, "t/x", "first", qos)
    scene.run(0.1)  # accepted; its PUSH is stuck
    if planned:
        scene.decide(PlacePartitions({0: PartitionEntry(placement.epoch + 1, other, placement.in_sync)}))
    else:
        scene.cut(primary, "r1")
        scene.until(lambda: scene.is_dead(primary), 10.0)
    scene.run(0.1)
    scene.publish(publisher, "t/x", "second", qos)
    scene.until(lambda: "second" in subscriber.received)
    scene.network.release(primary, "e2")
    scene.run(2.0)
    assert subscriber.received == (["warm", "first", "second"] if qos else ["warm", "second"])
    scene.heal(primary, "r1")
    scene.judge()


def test_c4_two_messages_wait_for_their_record() -> None:
    scene = Scene(edges=2)
    publisher = scene.client("publisher", "e1")
    subscriber = scene.client("subscriber", "e2", None, "t/x")
    publisher.publish("t/x", "first", 2)
    scene.kill("s1")
    publisher.publish("t/x", "second", 2)
    scene.run(0.5)
    publisher.publish("t/x", "third", 2)
    scene.start("s1")
    scene.until(lambda: len(subscriber.received) == 3, 15.0)
    assert subscriber.received == ["first", "second", "third"]
    scene.judge()


def test_c6_planned_move_keeps_qos_0() -> None:
    """An edge with the old map sends QoS 0 to the former primary, which forwards it in order."""
    scene = Scene(edges=2, storages=2, replicas=2, min_in_sync=1, partitions=1)
    placement = scene.map.partitions[0]
    other = next(name for name in placement.in_sync if name != placement.primary)
    publisher = scene.client("publisher", "e1", EPHEMERAL)
    subscriber = scene.client("subscriber", "e2", None, "t/x")
    scene.publish(publisher, "t/x", "warm")  # e1 caches the topic
    scene.network.jam("r1", "e1")
    scene.decide(PlacePartitions({0: PartitionEntry(placement.epoch + 1, other, placement.in_sync)}))
    scene.run(0.2)
    for number in range(5):
        scene.publish(publisher, "t/x", f"old-map-{number}", 0)
    scene.run(0.1)
    scene.network.release("r1", "e1")
    for number in range(5):
        scene.run(0.002)
        scene.publish(publisher, "t/x", f"new-map-{number}", 0)
    scene.until(lambda: "new-map-4" in subscriber.received)
    expected = ["warm", *(f"{which}-map-{number}" for which in ("old", "new") for number in range(5))]
    assert subscriber.received == expected
    scene.judge()


@pytest.mark.parametrize("lost", [1, 2])
def test_c7_primary_skips_epochs_and_reloads_the_map(lost: int) -> None:
    """An edge's frames for the skipped epochs are dropped, and sent again for the last one."""
    scene = Scene(edges=2, storages=2, replicas=2, min_in_sync=1, partitions=1)
    placement = scene.map.partitions[0]
    publisher = scene.client("publisher", "e1")
    subscriber = scene.client("subscriber", "e2", None, "t/x")
    scene.publish(publisher, "t/x", "warm")
    primary = scene.cluster.storage(placement.primary)
    primary.loses_map = True
    for number in range(lost):
        keep_primary(scene)
        scene.run(0.02)
        publisher.publish("t/x", f"between-{number}", 1)
        scene.run(0.02)
    primary.loses_map = False
    keep_primary(scene)
    scene.until(lambda: not publisher.publishing)
    assert primary.core.counts["map_reads_whole"] == 1
    assert primary.core.counts["publishes_of_former_times"] >= lost
    scene.until(lambda: len(subscriber.received) == 1 + lost)
    scene.judge()


@pytest.mark.parametrize("silent_s", [3.0, 9.0])
def test_c8_primary_gets_no_map_for_long(silent_s: float) -> None:
    """Regression: early messages were dropped after 8 s, and their repeats acknowledged after later messages."""
    scene = Scene(edges=2, storages=2, replicas=2, min_in_sync=1, partitions=1)
    publisher, other = scene.client("publisher", "e1"), scene.client("other", "e1")
    subscriber = scene.client("subscriber", "e2", None, "t/x")
    scene.publish(publisher, "t/x", "warm")
    primary = scene.cluster.storage(scene.map.partitions[0].primary)
    primary.loses_map = True
    keep_primary(scene)
    scene.run(0.02)
    publisher.publish("t/x", "waits", 1)
    scene.run(silent_s)
    other.publish("t/x", "later", 1)
    scene.run(0.2)
    primary.loses_map = False
    scene.decide(SetAdminState("e2", "draining"))  # a step without this partition, which reveals that one is lost
    scene.decide(SetAdminState("e2", ""))
    scene.until(lambda: "later" in subscriber.received)
    keep_primary(scene)
    scene.run(1.0)
    assert ("waits" in subscriber.received) == (silent_s < EARLY_S) == publisher.connected
    scene.connect(publisher, "e1")
    scene.until(lambda: not publisher.publishing and "waits" in subscriber.received)
    scene.judge()


def keep_primary(scene: Scene) -> None:
    """Raise the epoch of partition 0 without changing its primary."""
    now = scene.map.partitions[0]
    scene.decide(PlacePartitions({0: PartitionEntry(now.epoch + 1, now.primary, now.in_sync)}))


def test_d1_edge_unreachable_for_the_shard_owner() -> None:
    scene = Scene(routers=3, edges=2)
    leader = scene.leader()
    other = next(name for name in ("r1", "r2", "r3") if name != leader)
    topic = scene.topic_of(other)
    publisher = scene.client("publisher", "e1", EPHEMERAL)
    scene.publish(publisher, topic, "before")  # e1 caches it
    subscriber = scene.client("subscriber", "e2", PATIENT)
    scene.cut("e1", other)  # e1 and the leader stay connected
    subscriber.subscribe(topic, 1)
    scene.until(lambda: subscriber.subscribed, 20.0)


def test_d2_every_storage_node_was_declared_dead() -> None:
    scene = Scene(edges=2, storages=3, replicas=3, min_in_sync=2)
    publisher = scene.client("publisher", "e1")
    subscriber = scene.client("subscriber", "e2", None, "t/x")
    scene.publish(publisher, "t/x", "before")
    subscriber.drop()
    scene.publish(publisher, "t/x", "queued")
    for name in ("s1", "s2", "s3"):
        scene.cut(name, "r1")
    scene.until(lambda: all(scene.is_dead(name) for name in ("s1", "s2", "s3")), 10.0)
    for name in ("s1", "s2", "s3"):
        scene.heal(name, "r1")
    scene.connect(subscriber, "e1", 30.0)
    scene.publish(publisher, "t/x", "after")
    scene.until(lambda: subscriber.received == ["before", "queued", "after"])
    scene.judge()
