"""Short scripts of cores that the table of seeded bugs needs and no other test has; each must pass without a bug."""

from itertools import count
from types import SimpleNamespace
from typing import Any, cast

from edge.routes.answers import RouteAnswer, RouteAnswers
from edge.routes.fanout_account import FanoutAccount
from edge.routes.route_cache import RouteCache
from edge.routes.shared_groups import SharedGroups
from router.map.leases import LeaseTable
from router.routes.shard import RouteShard
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState, ShardEntry
from wire.messages.control import Control
from wire.messages.nodes import Heartbeat, HeartbeatReply, Registered
from wire.messages.routes import (
    AddRoutes,
    Invalidate,
    Invalidated,
    RemoveRoutes,
    Resolve,
    Resolved,
    RouteEntry,
    RoutesAdded,
)
from wire.node.lease_holder import LeaseHolder

__all__ = ["SCENARIOS"]

TOPIC = "sensors/1"
LEASE_S = 2.0


class _Barrier:
    """One shard, the cache of one edge that publishes, and a session elsewhere that subscribes."""

    def __init__(self) -> None:
        self.shard = RouteShard(0, 1, [], [], 100)
        self.sent: list[Control] = []
        self.routes: list[RouteAnswer] = []
        cluster_map = ClusterMap(cluster="test", shards=[ShardEntry(1, "r1")], base_shards=1)

        def tell(_: str, message: Control) -> bool:
            self.sent.append(message)
            return True

        def install(_: str, answer: RouteAnswer) -> Any:
            self.routes.append(answer)
            return answer

        account = FanoutAccount()
        answers = RouteAnswers("e1", lambda _: None, SharedGroups("e1", False, lambda _: None), account)
        self.cache = RouteCache(
            lambda: cluster_map,
            tell,
            lambda owner, messages: sum(tell(owner, message) for message in messages),
            answers,
            cast(Any, install),
            lambda _: None,
            lambda _: None,
            lambda _: False,
            lambda: None,
            100,
            lambda _: True,
            count(1).__next__,
        )

    def ask(self) -> Resolve:
        """Let the edge need the topic; return its query."""
        self.cache.need(TOPIC, lambda _: None)
        self.cache.flush(1.0)
        asked = self.sent.pop()
        assert isinstance(asked, Resolve)
        return asked

    def answer(self, asked: Resolve) -> Resolved:
        self.shard.resolve("e1", asked)
        answer = self.shard.take_sends()[-1][1]
        assert isinstance(answer, Resolved)
        return answer

    def subscribe(self, version: int = 1) -> list[Control]:
        """Register the filter of a partition; return the shard's messages."""
        self.shard.add("s1", AddRoutes(1, 0, 1, 7, 1, version, [RouteEntry("sensors/#")]))
        return [message for _, message in self.shard.take_sends()]


def cached_answer_goes_before_suback() -> None:
    """The edge caches an empty route; SUBACK must follow its invalidation, and the next query includes the
    subscriber.
    """
    barrier = _Barrier()
    barrier.cache.resolved("r1", barrier.answer(barrier.ask()))
    assert len(barrier.cache) == 1
    (order,) = barrier.subscribe()
    assert isinstance(order, Invalidate), "the subscriber was answered before the cached answer was gone"
    barrier.cache.invalidate("r1", order, 1.0)
    assert barrier.cache.answer(TOPIC) is None
    sent = barrier.sent.pop()
    assert isinstance(sent, Invalidated)
    barrier.shard.invalidated("e1", sent)
    assert [type(message) for _, message in barrier.shard.take_sends()] == [RoutesAdded]
    barrier.cache.resolved("r1", barrier.answer(barrier.ask()))
    assert barrier.routes[-1].partitions == (7,)


def answer_overtaken_by_its_invalidation_is_void() -> None:
    """The answer is still on its way when it is invalidated: it may not be kept when it arrives."""
    barrier = _Barrier()
    answer = barrier.answer(barrier.ask())
    (order,) = barrier.subscribe()
    assert isinstance(order, Invalidate)
    barrier.cache.invalidate("r1", order, 1.0)
    barrier.cache.resolved("r1", answer)
    assert barrier.cache.answer(TOPIC) is None


def invalidation_waits_for_retained_write() -> None:
    """A retained write left with the old answer: the subscriber may read the retained message only behind it."""
    barrier = _Barrier()
    barrier.cache.resolved("r1", barrier.answer(barrier.ask()))
    barrier.cache.retained_started(TOPIC)
    (order,) = barrier.subscribe()
    assert isinstance(order, Invalidate)
    barrier.cache.invalidate("r1", order, 1.0)
    assert not barrier.sent
    barrier.cache.retained_finished(TOPIC)
    assert isinstance(barrier.sent.pop(), Invalidated)


def second_subscriber_waits_for_the_same_invalidation() -> None:
    """The answer is being dropped for a first subscriber: a second one of the same filter waits for that too."""
    barrier = _Barrier()
    barrier.answer(barrier.ask())
    barrier.subscribe()
    barrier.shard.add("s2", AddRoutes(1, 0, 1, 7, 1, 2, [RouteEntry("sensors/#")]))
    assert not barrier.shard.take_sends()


def late_remove_leaves_a_newer_route() -> None:
    """A removal that arrives after a later subscription of the same sender has no effect."""
    barrier = _Barrier()
    barrier.subscribe(version=5)
    barrier.shard.remove("s1", RemoveRoutes(0, 1, 7, 1, 4, [RouteEntry("sensors/#")]))
    assert barrier.answer(barrier.ask()).destinations[0].partitions == [7]


def former_primary_registers_nothing() -> None:
    """Routes of a lower partition_epoch than one that was seen are refused."""
    barrier = _Barrier()
    barrier.shard.add("s2", AddRoutes(1, 0, 1, 7, 2, 1, [RouteEntry("other")]))
    barrier.shard.take_sends()
    assert not barrier.subscribe()
    assert not barrier.answer(barrier.ask()).destinations[0].partitions


def _edge(name: str) -> NodeEntry:
    return NodeEntry(name, "edge", 1, "127.0.0.1:1", state=NodeState.ACTIVE)


def lease_counts_from_the_question() -> None:
    """A delayed answer grants the lease from the time of the request."""
    holder = LeaseHolder(_edge("e1"), lambda *_: True, lambda _: None)
    holder.router_up("r1", 10.0)
    holder.beat(10.0)
    holder.handle(10.0, "r1", Registered(1, 1))
    holder.beat(10.0)
    holder.handle(11.5, "r1", HeartbeatReply(1, 10.0, LEASE_S, 0, "r1"))
    assert holder.lease_until <= 10.0 + LEASE_S


def _leases() -> tuple[LeaseTable, ClusterMap]:
    cluster_map = ClusterMap(cluster="test")
    cluster_map.nodes["e1"] = _edge("e1")
    leases = LeaseTable(LEASE_S, 0.1)
    leases.begin(100.0, cluster_map)
    return leases, cluster_map


def _beat(leases: LeaseTable, now: float) -> int:
    leases.add_heartbeat("e1", Heartbeat("e1", 1, now, 0), now)
    context = leases.next_round()
    assert context is not None
    return context


def no_grant_after_a_death_is_proposed() -> None:
    """The death is on its way through the log: a heartbeat that comes now must not be granted a lease."""
    leases, cluster_map = _leases()
    assert leases.expired(103.0, cluster_map)
    answers = leases.round_done(103.1, _beat(leases, 103.0), cluster_map)
    assert [granted for _, _, granted in answers] == [False]


def new_leader_waits_out_old_leases() -> None:
    """The former leader's leases are unknown: no node is dead before a whole lease of the new leader."""
    leases, cluster_map = _leases()
    assert not leases.expired(100.0 + LEASE_S, cluster_map)
    assert leases.expired(100.0 + LEASE_S + 0.2, cluster_map)


def map_is_settled_when_everybody_says_so() -> None:
    """An epoch counts as settled only when the slowest live node has acknowledged it."""
    leases, cluster_map = _leases()
    cluster_map.nodes["e2"] = _edge("e2")
    cluster_map.epoch = 9
    leases.add_heartbeat("e1", Heartbeat("e1", 1, 100.0, 9), 100.0)
    assert leases.settled_epoch(cluster_map) == 0


SCENARIOS = SimpleNamespace(
    cached_answer_goes_before_suback=cached_answer_goes_before_suback,
    answer_overtaken_by_its_invalidation_is_void=answer_overtaken_by_its_invalidation_is_void,
    invalidation_waits_for_retained_write=invalidation_waits_for_retained_write,
    second_subscriber_waits_for_the_same_invalidation=second_subscriber_waits_for_the_same_invalidation,
    late_remove_leaves_a_newer_route=late_remove_leaves_a_newer_route,
    former_primary_registers_nothing=former_primary_registers_nothing,
    lease_counts_from_the_question=lease_counts_from_the_question,
    no_grant_after_a_death_is_proposed=no_grant_after_a_death_is_proposed,
    new_leader_waits_out_old_leases=new_leader_waits_out_old_leases,
    map_is_settled_when_everybody_says_so=map_is_settled_when_everybody_says_so,
)
