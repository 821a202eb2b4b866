"""Rules about messages that a router may send in its role, each removed, and the test that detects it.

Hostile seeds (``hostile_seeds.py``) and, for a balancer, ``balancer.py`` check the cluster's list of routers.
Source: docs/protocol.md rules 1.12, 1.14 and 2.12 to 2.15.
"""

from types import ModuleType
from typing import Any

import pytest

from access.policy.follower import PolicyFollower
from edge.routes import route_cache
from router import early_messages
from router.map.contradictions import Contradictions
from storage.sessions import subscriptions
from tests.access.policy import test_follower as _F
from tests.edge import test_route_cache as _C
from tests.mutants.seeded import Patch, SeededBug, _bug
from tests.router import test_contradictions as _D
from tests.router import test_early_messages as _E
from tests.storage import test_partition as _P
from tests.wire import test_lease_holder as _L
from tests.wire import test_route_pacing as _R
from wire.messages.cluster_map import ClusterMap, MapDelta
from wire.messages.digests import Verdict
from wire.node import lease_holder, route_registrar
from wire.node.lease_holder import LeaseHolder

__all__ = ["ROUTER_ROLES"]


def _whatever_was_before(original: Any, cluster_map: ClusterMap, delta: MapDelta) -> None:
    cluster_map.digest = delta.before
    original(cluster_map, delta)


def _from_whom_it_follows(original: Any, follower: PolicyFollower, now: float, _: str, message: Any) -> bool:
    return bool(original(follower, now, follower.following, message))


def _owner_anybody(module: ModuleType) -> Patch:
    return lambda patch: patch.setattr(module, "is_shard_owner", lambda *_: True)


def _owner(module: ModuleType, witness: Any) -> SeededBug:
    where = f"{module.__name__.replace('.', '/')}.py is_shard_owner"
    return SeededBug(
        f"any router answers for a shard: {where}", where, _owner_anybody(module), witness, witness.__name__
    )


def _names_have_no_share(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(early_messages, "NAME_MAX", early_messages.EARLY_MAX)


ROUTER_ROLES: tuple[SeededBug, ...] = (
    _owner(route_registrar, _R.test_route_registrar_answer_of_a_router_without_the_shard_is_ignored),
    _owner(route_cache, _C.test_answers_from_other_routers_are_refused),
    _owner(subscriptions, _P.test_routes_added_by_a_router_without_the_shard_is_refused),
    _bug(
        "answers of a router that was not asked count",
        LeaseHolder,
        "was_asked",
        lambda *_: True,
        _L.test_lease_holder_ignores_unrequested_answers,
    ),
    _bug(
        "a lease is anybody's to grant",
        lease_holder,
        "_is_referral",
        lambda *_: True,
        _L.test_lease_holder_accepts_a_lease_only_from_the_leader,
    ),
    _bug(
        "steps of the policy are anybody's",
        PolicyFollower,
        "handle",
        _from_whom_it_follows,
        _F.test_follower_ignores_other_routers,
    ),
    _bug(
        "a step fits on any map",
        ClusterMap,
        "apply",
        _whatever_was_before,
        _L.test_lease_holder_refuses_a_step_on_another_map_and_requests_the_map,
    ),
    _bug(
        "a heartbeat above the log settles",
        Contradictions,
        "_map_verdict",
        lambda *_: Verdict.FITS,
        _D.test_map_epoch_above_the_log_gets_no_lease_and_a_reload,
    ),
    SeededBug(
        "one name takes all room for early messages",
        "router/early_messages.py EarlyMessages.keep",
        _names_have_no_share,
        _E.test_early_messages_are_limited_per_node_across_incarnations,
        "test_early_messages_are_limited_per_node_across_incarnations",
    ),
)
