"""Schedules that break naive routes, played by whole clusters; each is named after its schedule.

The clients' view is checked; docs/protocol.md has the rules. ``tests/mutants/rules.py`` lists the rule that each script
depends on.
"""

import pytest

from router.map.commands import Delegate, PlaceShards
from router.routes.shard import RouteShard
from tests.clients.packets import PINGREQ, publish
from tests.simulation.raw_client import RawClient
from tests.simulation.scene import EPHEMERAL, Scene
from tests.simulation.schedule_options import PATIENT
from wire.messages.control import Control
from wire.messages.routes import Invalidate


def test_a1_delegation_moves_a_topic_without_a_new_shard_owner() -> None:
    scene = Scene(routers=2, edges=4, shards=8)
    publisher = scene.client("publisher", "e1")
    broad = scene.client("broad", "e2", EPHEMERAL, "devices/+/temp")
    scene.publish(publisher, "devices/7/temp", "before")  # e1 caches the topic by its old key
    shard = scene.map.shard_for_topic("devices/7/temp")
    scene.decide(Delegate("devices", 2))
    assert scene.map.shard_for_topic("devices/7/temp") != shard
    narrow = scene.client("narrow", "e3", EPHEMERAL, "devices/7/temp")
    scene.publish(publisher, "devices/7/temp", "cached")
    scene.publish(scene.client("other", "e4"), "devices/7/temp", "asked")
    scene.until(lambda: broad.received == ["before", "cached", "asked"])
    scene.until(lambda: narrow.received == ["cached", "asked"])
    scene.decide(Delegate("devices", 0))  # and back
    scene.publish(publisher, "devices/7/temp", "after")
    scene.until(lambda: "after" in broad.received and "after" in narrow.received)
    scene.judge()


def test_a2_partition_primary_dies_before_its_report() -> None:
    scene = Scene(routers=2, edges=2, storages=2, replicas=2, partitions=8)
    durable = scene.client("durable", "e2", None, "t/x", client_id=scene.name_on("s1", "d"))
    publisher = scene.client("publisher", "e1")
    former = scene.owner("t/x")
    heir = next(name for name in ("r1", "r2") if name != former)
    scene.cut("s1", heir)  # s1's report to the new owner gets stuck
    scene.decide(PlaceShards({scene.map.shard_for_topic("t/x"): heir}))
    publisher.publish("t/x", "meanwhile", 1)
    scene.run(0.5)
    scene.kill("s1")
    scene.heal("s1", heir)
    scene.until(lambda: not publisher.publishing, 20.0)
    scene.publish(publisher, "t/x", "after")
    scene.until(lambda: durable.received == ["meanwhile", "after"], 20.0)
    scene.judge()


def test_a3_new_owner_of_a_filter_with_a_lost_invalidation() -> None:
    scene = Scene(routers=3, edges=2)
    routers = ("r1", "r2", "r3")
    follows = scene.cluster.edge("e1").core.lease.following
    owner, heir = (name for name in routers if name != follows)
    topic = scene.topic_of(owner)
    publisher = scene.client("publisher", "e1")
    scene.publish(publisher, topic, "before")  # e1 caches the topic
    subscriber = scene.client("subscriber", "e2", PATIENT)
    scene.network.jam(owner, "e1")  # the invalidation gets stuck
    subscriber.subscribe(topic, 1)
    scene.run(0.2)
    assert not subscriber.subscribed
    for router in (heir, follows):  # as do the map, which voids the former owner's answers, and new answers
        scene.network.jam(router, "e1")
    scene.decide(PlaceShards({scene.map.shard_for_topic(topic): heir}))
    scene.run(0.3)
    publisher.publish(topic, "meanwhile", 1)
    scene.run(0.2)
    for router in routers:
        scene.network.release(router, "e1")
    scene.until(lambda: topic in subscriber.subscribed, 20.0)
    scene.publish(publisher, topic, "after")
    scene.until(lambda: "after" in subscriber.received)
    scene.judge()


def test_a4a_filter_with_a_pending_first_registration() -> None:
    scene = Scene(edges=2)
    publisher = scene.client("publisher", "e1")
    scene.publish(publisher, "t/x", "before")
    one = scene.client("one", "e2", EPHEMERAL)
    other = scene.client("other", "e2", EPHEMERAL)
    scene.cluster.nodes["e1"].pause()
    one.subscribe("t/x", 1)
    scene.run(0.1)
    other.subscribe("t/x", 1)
    scene.run(0.5)
    assert not one.subscribed
    assert not other.subscribed, "SUBACK before the filter is acknowledged by its shard"
    scene.cluster.nodes["e1"].resume()
    scene.until(lambda: one.subscribed and other.subscribed)
    scene.publish(publisher, "t/x", "after")
    scene.until(lambda: "after" in one.received and "after" in other.received)
    scene.judge()


def test_a4b_subscription_whose_route_was_lost_with_the_primary() -> None:
    scene = Scene(routers=3, edges=2)
    leader = scene.leader()
    owner = next(name for name in ("r1", "r2", "r3") if name != leader)
    topic = scene.topic_of(owner)
    publisher = scene.client("publisher", "e1")
    scene.publish(publisher, topic, "before")
    subscriber = scene.client("subscriber", "e2")
    scene.network.jam("s1", owner)  # AddRoutes gets stuck
    subscriber.subscribe(topic, 1)
    scene.run(0.3)
    assert not subscriber.subscribed
    scene.kill("s1")
    scene.start("s1")
    scene.run(1.0)
    publisher.publish(topic, "meanwhile", 1)
    scene.run(0.5)
    scene.network.release("s1", owner)
    scene.until(lambda: topic in subscriber.subscribed, 20.0)
    scene.publish(publisher, topic, "after")
    scene.until(lambda: "after" in subscriber.received)
    scene.judge()


def test_a5_shard_owner_restarts_within_its_lease() -> None:
    scene = Scene(edges=2)
    publisher = scene.client("publisher", "e1")
    old = scene.client("old", "e2", EPHEMERAL, "t/x")
    scene.publish(publisher, "t/x", "before")
    scene.kill("r1")
    scene.run(0.3)
    scene.start("r1")
    scene.publish(publisher, "t/x", "cached")
    scene.publish(publisher, "u/x", "asked-after-the-restart")
    new = scene.client("new", "e2", EPHEMERAL, "t/x", "u/x")
    scene.publish(publisher, "t/x", "after")
    scene.publish(publisher, "u/x", "after-too")
    scene.until(lambda: {"before", "cached", "after"} <= set(old.received))
    scene.until(lambda: {"after", "after-too"} <= set(new.received))
    scene.judge()


def test_a6_shards_move_away_and_back() -> None:
    scene = Scene(routers=3, edges=3)
    publisher = scene.client("publisher", "e1")
    subscriber = scene.client("subscriber", "e2", EPHEMERAL)
    for number in range(3):
        owner = scene.map.shards[scene.map.shard_for_topic("t/x")].owner
        scene.network.jam("e1", owner)
        assert publisher.publish(f"t/x{number}", f"asked-{number}", 1)  # the request waits on the way to this owner
        scene.kill(owner)
        scene.subscribe(subscriber, f"t/x{number}", 1, 20.0)
        scene.start(owner)
        scene.run(1.0)
        scene.network.release("e1", owner)
        scene.run(1.0)
        scene.until(lambda: publisher.has_room and not publisher.publishing, 20.0)
        scene.publish(publisher, f"t/x{number}", f"after-{number}")
        scene.until(lambda wanted=f"after-{number}": wanted in subscriber.received)
    scene.judge()


def test_a6_sender_without_the_new_owner_in_its_map() -> None:
    scene = Scene(routers=3, edges=2)
    routers = ("r1", "r2", "r3")
    follows = scene.cluster.edge("e2").core.lease.following
    owner = next(name for name in routers if name != follows)
    topic = scene.topic_of(owner)
    publisher = scene.client("publisher", "e1")
    scene.publish(publisher, topic, "before")  # e1 caches the topic
    subscriber = scene.client("subscriber", "e2", PATIENT)
    others = [name for name in routers if name != owner]
    for other in others:
        scene.network.jam(other, "e2")  # e2 stays at the old map
    scene.decide(PlaceShards({scene.map.shard_for_topic(topic): others[0]}))
    scene.run(0.2)
    subscriber.subscribe(topic, 1)  # its edge sends to the former owner
    scene.run(0.2)
    publisher.publish(topic, "meanwhile", 1)
    scene.run(0.2)
    for other in others:
        scene.network.release(other, "e2")
    scene.until(lambda: subscriber.subscribed)
    scene.publish(publisher, topic, "after")
    scene.until(lambda: "after" in subscriber.received)
    scene.judge()


@pytest.mark.parametrize("after_ms", range(0, 30, 6))
def test_a7_invalidation_and_answer_cross(after_ms: int) -> None:
    scene = Scene(edges=2, delay_s=0.005, jitter_s=0.001)
    publisher = scene.client("publisher", "e1")
    subscriber = scene.client("subscriber", "e2", EPHEMERAL)
    subscriber.subscribe("t/x", 1)
    scene.run(after_ms / 1000)
    publisher.publish("t/x", "overlap", 1)  # its request meets AddRoutes at the owner
    scene.network.break_between("e1", "r1")
    scene.until(lambda: subscriber.subscribed and not publisher.publishing)
    scene.publish(publisher, "t/x", "after")
    scene.until(lambda: "after" in subscriber.received)
    scene.judge()


def test_a7_invalidation_overtakes_the_answer() -> None:
    """Links keep their order; an edge that processed invalidations before answers would not."""
    take_sends = RouteShard.take_sends

    def orders_first(shard: RouteShard) -> list[tuple[str, Control]]:
        return sorted(take_sends(shard), key=lambda send: not isinstance(send[1], Invalidate))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RouteShard, "take_sends", orders_first)
        scene = Scene(edges=2)
        publisher = scene.client("publisher", "e1")
        subscriber = scene.client("subscriber", "e2", EPHEMERAL)
        router = scene.cluster.nodes["r1"]
        router.pause()
        publisher.publish("t/x", "overlap", 1)
        scene.run(0.05)
        subscriber.subscribe("t/x", 1)
        scene.run(0.05)
        router.resume()  # request and AddRoutes in one iteration
        scene.until(lambda: subscriber.subscribed and not publisher.publishing)
        scene.publish(publisher, "t/x", "after")
        scene.until(lambda: "after" in subscriber.received)
        scene.judge()


@pytest.mark.parametrize("after_ms", [0, 1, 2, 3, 5, 8, 20])
def test_a7_filter_arrives_while_topics_are_resolved_ahead(after_ms: int) -> None:
    """R4 for a route that was cached before its packet was parsed: messages after SUBACK are delivered."""
    scene = Scene(edges=2)
    burst = RawClient(scene.cluster, "burst", 4)
    publisher = scene.client("publisher", "e1")
    subscriber = scene.client("subscriber", "e2", EPHEMERAL)
    topics = [b"t/%d" % number for number in range(900)]
    burst.end.send(b"".join(publish(topic, b"x") for topic in topics) + PINGREQ)
    scene.run(after_ms / 1000)
    subscriber.subscribe("t/899", 1)
    scene.until(lambda: subscriber.subscribed)
    burst.end.send(publish(b"t/899", b"behind"))
    publisher.publish("t/899", "other", 1)
    scene.run(0.5)
    assert {"behind", "other"} <= set(subscriber.received)
    assert burst.read() == ["PINGRESP"]
    assert scene.cluster.edge("e1").core.hot.counters()["read_ahead_bytes"] == 0


def test_a8_edge_joins_through_a_lagging_router() -> None:
    scene = Scene(routers=3, edges=3, shards=8, lease_s=8.0)  # a long one, to allow actions within it
    leader, follows = scene.leader(), scene.cluster.edge("e2").core.lease.following
    lagging = next(name for name in ("r1", "r2", "r3") if name not in (leader, follows))
    others = [name for name in ("r1", "r2", "r3") if name != lagging]
    topic = scene.topic_of(lagging)
    scene.kill("e3")
    scene.until(lambda: scene.is_dead("e3"), 20.0)
    scene.isolate(lagging, others)  # it keeps its lease for a while, and a map in which it owns the topic
    scene.isolate("e3", others)
    scene.start("e3")  # it follows the map of the only reachable router
    scene.until(lambda: scene.owner(topic) != lagging)
    scene.rejoin("e3", others)  # its messages to the leader arrive: registered, with a lease
    scene.until(lambda: scene.map.is_alive("e3", scene.cluster.nodes["e3"].incarnation))
    late = scene.cluster.client("late", EPHEMERAL)
    for _ in range(20):
        if not late.connected:
            if not late.trying:
                late.connect("e3:2")
            scene.run(0.01)
    if late.connected:
        late.publish(topic, "cached", 1)
        scene.run(0.02)
    subscriber = scene.client("subscriber", "e2", EPHEMERAL, topic)
    if late.connected:
        late.publish(topic, "soon", 1)
    scene.run(0.2)
    scene.connect(late, "e3", 30.0)
    scene.publish(late, topic, "after")
    scene.until(lambda: "after" in subscriber.received)
    scene.judge()


def test_a8_shard_owner_learns_an_edges_new_incarnation_late() -> None:
    scene = Scene(routers=3, edges=2)
    leader = scene.leader()
    owner = next(name for name in ("r1", "r2", "r3") if name != leader)
    topic = scene.topic_of(owner)
    far = scene.client("far", "e2")
    epoch = scene.cluster.router(owner).core.machine.map.epoch
    scene.network.jam(leader, owner)
    scene.kill("e1")
    scene.start("e1")
    scene.until(lambda: scene.cluster.edge("e1").core.ready)
    subscriber = scene.client("subscriber", "e1", PATIENT)
    subscriber.subscribe(topic, 1)
    near = scene.client("near", "e1")
    near.publish(topic, "one", 1)
    scene.run(0.1)
    assert scene.cluster.router(owner).core.machine.map.epoch == epoch
    scene.network.release(leader, owner)
    scene.until(lambda: topic in subscriber.subscribed and not near.publishing)
    scene.run(1.0)
    scene.publish(far, topic, "two")
    scene.until(lambda: "two" in subscriber.received)
    late = scene.client("late", "e2", EPHEMERAL, topic)
    scene.publish(near, topic, "three")
    scene.until(lambda: "three" in late.received)
    scene.judge()


def test_a6_answer_to_a_request_of_the_edges_former_incarnation() -> None:
    """The owner's answer waited for a report; it does not know the next incarnation, whose numbers restart."""
    scene = Scene(routers=3, edges=3)
    busy = (scene.leader(), scene.cluster.storage("s1").core.lease.following)
    owners = {placement.owner for placement in scene.map.shards}
    owner = next(name for name in ("r1", "r2", "r3") if name not in busy and name not in owners)
    topics = {scene.map.shard_for_topic(f"t{number}/x"): f"t{number}/x" for number in range(100)}
    shard, other = (number for number, placement in enumerate(scene.map.shards) if placement.owner != owner)
    topic, elsewhere = topics[shard], topics[other]
    cached = next(name for n in range(100) if scene.map.shard_for_topic(name := f"c{n}/x") == shard)
    subscriber = scene.client("subscriber", "e2", EPHEMERAL, topic)
    scene.publish(scene.client("near", "e1"), cached, "before")
    scene.network.jam("e3", owner)  # its report
    scene.decide(PlaceShards({shard: owner}))
    scene.run(0.1)  # e1 registers the cached topic
    shard_owner = scene.cluster.router(owner).core
    assert shard_owner.shards[shard].collecting
    epoch = shard_owner.machine.map.epoch
    scene.network.jam(scene.leader(), owner)
    scene.kill("e1")
    scene.start("e1")
    scene.until(lambda: scene.cluster.edge("e1").core.ready)
    publisher = scene.client("publisher", "e1")
    scene.publish(publisher, elsewhere, "a-question-more")
    publisher.publish(topic, "one", 1)
    scene.run(0.02)
    scene.network.release("e3", owner)
    scene.run(0.2)
    assert shard_owner.machine.map.epoch == epoch
    scene.network.release(scene.leader(), owner)
    scene.until(lambda: not publisher.publishing)
    scene.until(lambda: "one" in subscriber.received)
    scene.judge()


def test_a9_unsubscribe_that_was_not_committed() -> None:
    scene = Scene(edges=2)
    publisher = scene.client("publisher", "e1")
    subscriber = scene.client("subscriber", "e2", None, "t/x")
    storage = scene.cluster.storage("s1")
    storage.slow_s = 5.0
    subscriber.unsubscribe("t/x")
    scene.run(0.3)
    subscriber.drop()  # it has no UNSUBACK
    storage.disk.unsynced.clear()  # the operation is lost
    scene.kill("s1", power=True)
    scene.kill("e2")  # no client repeats it
    storage.slow_s = 0.0
    publisher.publish("t/x", "meanwhile", 1)
    scene.run(0.3)
    scene.start("s1", "e2")
    scene.connect(subscriber, "e2")
    scene.until(lambda: not publisher.publishing)
    scene.publish(publisher, "t/x", "after")
    scene.until(lambda: subscriber.received == ["meanwhile", "after"])  # subscribed all the time
    scene.judge()


@pytest.mark.parametrize("after_ms", range(0, 40, 10))
def test_a10_retained_publish_between_the_live_path_and_the_read(after_ms: int) -> None:
    scene = Scene(edges=2, delay_s=0.002)
    publisher = scene.client("publisher", "e1")
    scene.publish(publisher, "t/x", "old", retain=True)
    scene.cluster.storage("s1").slow_s = 0.1
    subscriber = scene.client("subscriber", "e2", EPHEMERAL)
    publisher.publish("t/x", "new", 1, retain=True)
    scene.run(after_ms / 1000)
    subscriber.subscribe("t/x", 1)
    scene.until(lambda: subscriber.subscribed and not publisher.publishing)
    scene.run(2.0)
    assert "new" in subscriber.received, "neither live nor retained"


def test_a10_retained_publish_in_flight_to_its_partition() -> None:
    scene = Scene(edges=2)
    publisher = scene.client("publisher", "e1")
    scene.publish(publisher, "t/x", "old", retain=True)
    subscriber = scene.client("subscriber", "e2", EPHEMERAL)
    scene.network.jam("e1", "s1")
    publisher.publish("t/x", "new", 1, retain=True)
    scene.run(0.05)
    subscriber.subscribe("t/x", 1)
    scene.run(0.3)
    scene.network.release("e1", "s1")
    scene.until(lambda: subscriber.subscribed and not publisher.publishing)
    scene.run(1.0)
    assert "new" in subscriber.received, "neither live nor retained"


def test_a3_new_owner_of_a_filter_with_a_retained_publish_in_flight() -> None:
    scene = Scene(routers=3, edges=2)
    follows = scene.cluster.edge("e2").core.lease.following
    owner, heir = (name for name in ("r1", "r2", "r3") if name != follows)
    topic = scene.topic_of(owner)
    publisher = scene.client("publisher", "e1")
    scene.publish(publisher, topic, "old", retain=True)
    subscriber = scene.client("subscriber", "e2", EPHEMERAL)
    scene.network.jam("e1", "s1")
    publisher.publish(topic, "new", 1, retain=True)
    scene.run(0.05)
    scene.decide(PlaceShards({scene.map.shard_for_topic(topic): heir}))
    scene.run(0.1)
    subscriber.subscribe(topic, 1)
    scene.run(0.3)
    assert not subscriber.subscribed
    scene.network.release("e1", "s1")
    scene.until(lambda: subscriber.subscribed and not publisher.publishing)
    scene.run(1.0)
    assert "new" in subscriber.received, "neither live nor retained"
