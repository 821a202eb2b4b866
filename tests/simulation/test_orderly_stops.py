"""SIGTERM in a whole cluster: no wait for a lease, no loss, and wills follow their sessions' rules."""

from dataclasses import replace

import pytest

from stratamq.history.operations import Kind
from tests.simulation.scene import EPHEMERAL, Scene
from tests.simulation.sim_client import ClientOptions, SimClient
from tests.simulation.simulation import Mode, Options, run_seed
from wire.messages.cluster_map import NodeState

LEASE_S = 20.0  # a wait for a lease fails the test


def stop(scene: Scene, *names: str) -> None:
    """SIGTERM, recorded in the history."""
    for name in names:
        scene.cluster.mark(Kind.KILL, name, "stop")
        scene.cluster.stop(name)


def ended(scene: Scene, *names: str) -> bool:
    return not any(scene.cluster.nodes[name].up for name in names)


def longest_gap(scene: Scene, client: SimClient, topic: str, seconds: float) -> float:
    """Publish one message after the other for a time; return the longest time until a PUBACK."""
    longest, end = 0.0, scene.cluster.scheduler.now + seconds
    while (began := scene.cluster.scheduler.now) < end:
        scene.publish(client, topic, f"at-{began:.3f}")
        longest = max(longest, scene.cluster.scheduler.now - began)
        scene.run(0.01)
    return longest


@pytest.mark.parametrize("min_in_sync", [1, 2])
def test_storage_node_hands_its_partitions_over_first(min_in_sync: int) -> None:
    """Clients of its partitions wait for a change of placement, but not for a lease."""
    scene = Scene(storages=3, replicas=3, min_in_sync=min_in_sync, partitions=8, lease_s=LEASE_S)
    scene.run(1.0)
    name = scene.name_on("s1", "c")
    client = scene.client("loop", "e1", None, f"{name}/#", client_id=name)
    stop(scene, "s1")
    assert longest_gap(scene, client, f"{name}/x", 2.0) < 0.5
    assert ended(scene, "s1") and scene.is_dead("s1")
    assert {placement.primary for placement in scene.map.partitions} == {"s2", "s3"}
    scene.start("s1")
    scene.until(lambda: all(len(placement.in_sync) == 3 for placement in scene.map.partitions))
    assert longest_gap(scene, client, f"{name}/x", 1.0) < 0.5
    scene.judge()


def test_tier_that_stops_at_once_hands_nothing_over() -> None:
    """All three storage nodes end, and serve as before after the next start."""
    scene = Scene(storages=3, replicas=3, min_in_sync=2, partitions=8, lease_s=LEASE_S)
    client = scene.client("loop", "e1", None, "a/#")
    scene.publish(client, "a/x", "before")
    before = [placement.primary for placement in scene.map.partitions]
    stop(scene, "s1", "s2", "s3")
    scene.until(lambda: ended(scene, "s1", "s2", "s3"), within_s=2.0)
    assert {entry.state for entry in scene.map.live("storage")} == {NodeState.DRAINING}
    scene.start("s2", "s3", "s1")
    scene.publish(client, "a/x", "after")
    assert [placement.primary for placement in scene.map.partitions] == before
    scene.judge()


def test_stopping_edge_disconnects_its_clients_and_ends_its_lease() -> None:
    """DISCONNECT 0x8B; a SUBSCRIBE elsewhere is answered although the edge had cached its topic."""
    scene = Scene(lease_s=LEASE_S)
    client = scene.client("publisher", "e1", EPHEMERAL)
    scene.publish(client, "news/x", "cached")
    stop(scene, "e1")
    scene.until(lambda: ended(scene, "e1"), within_s=2.0)
    assert not client.connected
    assert scene.is_dead("e1")
    began = scene.cluster.scheduler.now
    scene.client("subscriber", "e2", EPHEMERAL, "news/#")
    assert scene.cluster.scheduler.now - began < 1.0
    scene.judge()


def test_received_messages_are_acknowledged_before_the_end() -> None:
    """For a message that waits for a slow disk, PUBACK comes before DISCONNECT, and it is stored once."""
    scene = Scene(lease_s=LEASE_S)
    options = replace(ClientOptions(), session_expiry_interval_s=3600)
    scene.client("reader", "e2", options, "queue/#")
    client = scene.client("writer", "e1", EPHEMERAL)
    scene.publish(client, "queue/x", "first")
    scene.cluster.storage("s1").slow_s = 0.5
    assert client.publish("queue/x", "second", 1)
    scene.run(0.05)
    stop(scene, "e1")
    scene.run(0.1)
    assert client.connected, "it waits for its answer"
    scene.until(lambda: ended(scene, "e1"), within_s=4.0)
    scene.cluster.storage("s1").slow_s = 0.0
    assert not client.publishing
    scene.judge()


@pytest.mark.parametrize(("delay_s", "fires"), [(0, True), (30, False)])
def test_will_fires_by_its_sessions_rules(delay_s: int, fires: bool) -> None:
    """The edge's shutdown is not a DISCONNECT of the client: the will fires, unless a delay allows a resume."""
    scene = Scene(lease_s=LEASE_S)
    watcher = scene.client("watcher", "e2", EPHEMERAL, "gone/#")
    options = replace(
        ClientOptions(),
        session_expiry_interval_s=3600,
        will_topic="gone/x",
        will_payload="will-1",
        will_qos=1,
        will_delay_interval_s=delay_s,
    )
    client = scene.client("mortal", "e1", options)
    stop(scene, "e1")
    scene.until(lambda: ended(scene, "e1"), within_s=2.0)
    scene.connect(client, "e2")
    scene.run(2.0)
    assert watcher.received == (["will-1"] if fires else [])


def test_router_hands_over_leadership_and_shards() -> None:
    """Its successor leads, and its shards answer, before any lease could expire."""
    scene = Scene(routers=3, lease_s=LEASE_S)
    scene.until(lambda: len(scene.map.live("router")) == 3)
    leader = scene.leader()
    topic = scene.topic_of(leader)
    stop(scene, leader)
    scene.until(lambda: ended(scene, leader), within_s=2.0)
    assert scene.is_dead(leader) and scene.owner(topic) != leader
    began = scene.cluster.scheduler.now
    scene.client("late", "e1", EPHEMERAL, topic)
    assert scene.cluster.scheduler.now - began < 1.0
    scene.start(leader)
    scene.until(lambda: len(scene.map.live("router")) == 3)
    scene.judge()


def test_all_routers_stop_at_once_and_restart() -> None:
    scene = Scene(routers=3, lease_s=2.0)
    scene.until(lambda: len(scene.map.live("router")) == 3)
    stop(scene, "r1", "r2", "r3")
    scene.until(lambda: ended(scene, "r1", "r2", "r3"), within_s=4.5)
    scene.start("r1", "r2", "r3")
    scene.client("late", "e1", EPHEMERAL, "some/topic")
    scene.judge()


@pytest.mark.parametrize(("seed", "mode"), [(200_000, "safety"), (200_001, "liveness")])
def test_random_seed_with_stops(seed: int, mode: Mode) -> None:
    result = run_seed(seed, Options(mode=mode, seconds=3.0, stops=True))
    assert not result.failures, result.failures
