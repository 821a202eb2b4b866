"""The canary probes each shard and partition; two failures make the edge not ready, one success ends it."""

import msgspec

from conf.metrics import Metrics
from edge.canary import PERIOD_S, Canary
from tests.edge.edge_harness import PARTITIONS, SHARDS, Edge
from wire.messages.cluster_map import Delegation, ShardEntry
from wire.messages.retained import ReadRetained
from wire.messages.routes import Resolve


class Scene:
    """An edge with a canary."""

    def __init__(self) -> None:
        self.edge = Edge()
        core = self.edge.core
        self.canary = Canary(core.node, core.requests, core.cache, lambda: self.edge.now, lambda: None)
        self.metrics = Metrics("edge", "e0", "1")
        self.canary.register(self.metrics)

    def look(self) -> None:
        self.edge.turn(PERIOD_S)
        self.canary.look(self.edge.now)
        self.edge.turn()
        self.edge.answer()

    @property
    def is_ready(self) -> bool:
        return self.metrics.readiness()["canary"]


def test_canary_probes_every_shard_and_partition() -> None:
    """One probe for each; none stays in the route cache."""
    scene = Scene()
    routes = len(scene.edge.core.cache)
    for _ in range(PARTITIONS):
        scene.look()
    asked = [message for message in scene.edge.seen if isinstance(message, ReadRetained)]
    assert [message.partition for message in asked[-PARTITIONS:]] == list(range(PARTITIONS))
    resolved = [message for message in scene.edge.seen if isinstance(message, Resolve)]
    assert [message.shard for message in resolved[-PARTITIONS:]] == [n % SHARDS for n in range(PARTITIONS)]
    shard_of = scene.edge.core.map.shard_for_topic
    assert all(shard_of(message.topics[0]) == message.shard for message in resolved[-PARTITIONS:])
    assert len(scene.edge.core.cache) == routes
    assert scene.is_ready and scene.canary.failures == 0
    assert sum(scene.canary.times.counts) == PARTITIONS


def test_canary_of_pinned_prefix_uses_its_own_topic() -> None:
    """Shards from S up have only topics under their prefix."""
    scene = Scene()
    cluster_map = scene.edge.core.map
    pinned = msgspec.structs.replace(
        cluster_map,
        shards=[*cluster_map.shards, ShardEntry(1, "r0")],
        delegations=(Delegation("plant/line", 2, "r0", SHARDS),),
    )
    scene.edge.core.lease.map = pinned
    for _ in range(SHARDS + 1):
        scene.look()
    assert [m for m in scene.edge.seen if isinstance(m, Resolve)][-1].topics == ["plant/line/$canary"]


def test_two_failures_and_one_success() -> None:
    """One failure may be a failover; the reason names the unresponsive parts."""
    scene = Scene()
    scene.look()
    scene.edge.held = {ReadRetained}
    scene.look()  # sent, not answered
    scene.look()
    assert scene.canary.failures == 1 and scene.is_ready
    scene.look()
    assert scene.canary.failures == 2 and not scene.is_ready
    assert scene.canary.reason() == "no answer within 10 s from partition 2"
    scene.edge.held = set()
    scene.edge.answer()  # of the third
    assert scene.is_ready and scene.canary.reason() == ""


def test_silent_shard_is_reported() -> None:
    """A response of the partition alone is no success."""
    scene = Scene()
    scene.edge.held = {Resolve}
    for _ in range(3):
        scene.look()
    assert scene.canary.reason() == "no answer within 10 s from route shard 1"
    assert len(scene.edge.core.requests) == 0


def test_canary_without_lease_sends_nothing() -> None:
    """The lease is a separate condition."""
    scene = Scene()
    scene.edge.turn(2_000)
    assert not scene.edge.core.node.has_lease()
    scene.edge.seen.clear()
    scene.look()
    assert not [message for message in scene.edge.seen if isinstance(message, ReadRetained | Resolve)]
    assert scene.canary.failures == 0
