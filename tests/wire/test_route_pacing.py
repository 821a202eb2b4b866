"""An owner of shards gets a bounded number of routes at a time, for any number of added or removed filters."""

import pytest

from wire.messages.cluster_map import ClusterMap, ShardEntry
from wire.messages.control import Control
from wire.messages.routes import AddRoutes, RemoveRoutes, RoutesAdded
from wire.node.route_registrar import (
    REMOVED_AT_ONCE,
    REMOVED_PER_TICK,
    ROUTES_ASKED_MAX,
    ROUTES_PER_REQUEST,
    RouteRegistrar,
)

SHARDS = 64
BROAD = [f"+/+/{number}" for number in range(1000)]


class Owners:
    """A registrar and its messages to two routers that own the shards alternately."""

    def __init__(self) -> None:
        shards = [ShardEntry(1, f"r{number % 2}") for number in range(SHARDS)]
        self.map = ClusterMap("c", 1, shards=shards, base_shards=SHARDS)
        self.told: list[tuple[str, Control]] = []
        self.standing: set[str] = set()
        self.registrar = RouteRegistrar(
            -1, 7, lambda node, message: self.told.append((node, message)), lambda: self.map, self.standing.update
        )

    def adds(self, owner: str) -> list[AddRoutes]:
        """Return and clear the unanswered AddRoutes to an owner."""
        taken = [message for node, message in self.told if node == owner and isinstance(message, AddRoutes)]
        self.told = [(node, one) for node, one in self.told if node != owner or not isinstance(one, AddRoutes)]
        return taken

    def removed(self) -> list[str]:
        """Return and clear the removed filters, once for each shard."""
        gone = [one for _, message in self.told if isinstance(message, RemoveRoutes) for one in message.routes]
        self.told = [(node, one) for node, one in self.told if not isinstance(one, RemoveRoutes)]
        return [route.topic_filter for route in gone]

    def answer(self, message: AddRoutes) -> None:
        """Confirm routes as their owner."""
        answer = RoutesAdded(message.request, message.shard, message.shard_epoch, 7)
        assert self.registrar.added(self.map.shards[message.shard].owner, answer)

    def serve(self, *owners: str) -> int:
        """Answer until no request is left; return the maximum of unanswered routes of one owner."""
        most = 0
        while asked := {owner: self.adds(owner) for owner in owners}:
            if not any(asked.values()):
                break
            for messages in asked.values():
                most = max(most, sum(len(message.routes) for message in messages))
                for message in messages:
                    self.answer(message)
        return most


def test_route_registrar_new_routes_wait_for_the_owners_answer() -> None:
    owners = Owners()
    owners.registrar.hold(BROAD, 0.0)
    assert 0 < owners.serve("r0", "r1") < ROUTES_ASKED_MAX + ROUTES_PER_REQUEST
    assert owners.standing == set(BROAD)
    assert not owners.registrar.waits


def test_route_registrar_silent_owner_does_not_delay_others() -> None:
    owners = Owners()
    owners.registrar.hold(BROAD, 0.0)
    owners.serve("r0")
    names = [f"level-{number}" for number in range(100)]
    owners.registrar.hold(names, 0.0)
    owners.serve("r0")
    of_the_first = {name for name in names if owners.map.shards_for_filter(name)[0] % 2 == 0}
    assert of_the_first and owners.standing == of_the_first
    owners.map = ClusterMap("c", 2, shards=[ShardEntry(2, "r0")] * SHARDS, base_shards=SHARDS)
    owners.registrar.placement_changed(set(range(SHARDS)), 1.0)
    owners.serve("r0")
    assert owners.standing == {*BROAD, *names}


def test_route_registrar_removals_are_limited_per_tick() -> None:
    owners = Owners()
    owners.registrar.hold(BROAD, 0.0)
    owners.serve("r0", "r1")
    owners.registrar.release(BROAD)
    gone = owners.removed()
    for tick in range(1, 1000):
        assert owners.registrar.waits
        owners.registrar.tick(float(tick))
        now = owners.removed()
        assert 0 < len(now) < REMOVED_PER_TICK + REMOVED_AT_ONCE * SHARDS
        gone += now
        if len(gone) == len(BROAD) * SHARDS:
            break
    assert sorted(gone) == sorted(BROAD * SHARDS)
    assert not owners.registrar.waits


def test_route_registrar_filter_held_again_before_its_removal_is_kept() -> None:
    owners = Owners()
    owners.registrar.hold(BROAD, 0.0)
    owners.serve("r0", "r1")
    owners.registrar.release(BROAD)
    owners.removed()
    owners.standing.clear()
    owners.registrar.hold(BROAD[-1:], 0.0)
    owners.serve("r0", "r1")
    assert owners.standing == set(BROAD[-1:])
    for tick in range(1, 200):
        owners.registrar.tick(float(tick))
    assert not owners.registrar.waits
    assert BROAD[-1] not in owners.removed()


def test_route_registrar_filter_released_before_its_request_is_not_added() -> None:
    owners = Owners()
    owners.registrar.hold(BROAD, 0.0)
    waiting = owners.adds("r0") + owners.adds("r1")
    owners.registrar.release(BROAD[-1:])
    for message in waiting:
        owners.answer(message)
    asked = set()
    while messages := owners.adds("r0") + owners.adds("r1"):
        for message in messages:
            asked |= {route.topic_filter for route in message.routes}
            owners.answer(message)
    assert asked == set(BROAD[:-1]) == owners.standing
    assert not owners.registrar.waits


@pytest.mark.parametrize("shard", [-1, SHARDS, 10**9, -SHARDS])
def test_route_registrar_answer_about_another_shard_is_ignored(shard: int) -> None:
    """A router sends it for a pending request: no error is raised, and the request stays pending."""
    owners = Owners()
    owners.registrar.hold(["a/b"], 0.0)
    (asked,) = owners.adds("r0") + owners.adds("r1")
    owner = owners.map.shards[asked.shard].owner
    owners.registrar.added(owner, RoutesAdded(asked.request, shard, 1, 7))
    owners.registrar.added(owner, RoutesAdded(asked.request, (asked.shard + 2) % SHARDS, 1, 7))
    assert not owners.registrar.stands("a/b") and owners.registrar.waits
    owners.answer(asked)
    assert owners.registrar.stands("a/b")


def test_route_registrar_answer_of_a_router_without_the_shard_is_ignored() -> None:
    """It has the request and the epoch of the shard, and comes from a router of the same group."""
    owners = Owners()
    owners.registrar.hold(["a/b"], 0.0)
    (asked,) = owners.adds("r0") + owners.adds("r1")
    owner = owners.map.shards[asked.shard].owner
    answer = RoutesAdded(asked.request, asked.shard, asked.shard_epoch, 7)
    assert not owners.registrar.added("r1" if owner == "r0" else "r0", answer)
    assert not owners.registrar.stands("a/b") and owners.registrar.waits
    assert owners.registrar.added(owner, answer)
    assert owners.registrar.stands("a/b")
