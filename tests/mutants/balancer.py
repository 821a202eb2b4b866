"""Rules of the balancer, each removed, and the schedule or test that detects it."""

from gateways.balancer import directory
from gateways.balancer.edge import Edge
from gateways.balancer.following import BalancerMapFollower
from tests.gateways.balancer import test_directory as _D
from tests.gateways.balancer import test_following as _F
from tests.mutants.seeded import SeededBug
from tests.simulation import test_balancer_schedules as _S
from wire.messages.hello import PeerKey

__all__ = ["BALANCER"]

ROUTER_UP = BalancerMapFollower.router_up


def _believe(self: Edge, _now: float, clients: int) -> None:
    self.clients = clients


def _follow_one(self: BalancerMapFollower, now: float, router: PeerKey) -> None:
    if not self._routers:
        ROUTER_UP(self, now, router)


def _believe_all(_self: BalancerMapFollower, _router: object) -> bool:
    return True


BALANCER: tuple[SeededBug, ...] = (
    SeededBug(
        "gossip alone makes a candidate",
        "gateways/balancer/directory.py _unavailable_reason",
        lambda patch: patch.setattr(directory, "_unavailable_reason", lambda _: ""),
        _S.test_gossip_alone_makes_no_candidate,
        "test_gossip_alone_makes_no_candidate",
    ),
    SeededBug(
        "one router alone is followed",
        "gateways/balancer/following.py MapFollower.router_up",
        lambda patch: patch.setattr(BalancerMapFollower, "router_up", _follow_one),
        _F.test_follower_first_router_step_applies,
        "test_follower_first_router_step_applies",
    ),
    SeededBug(
        "each router that answers is believed",
        "gateways/balancer/following.py MapFollower._is_trusted",
        lambda patch: patch.setattr(BalancerMapFollower, "_is_trusted", _believe_all),
        _F.test_follower_router_outside_map_is_refused,
        "test_follower_router_outside_map_is_refused",
    ),
    SeededBug(
        "old news undo picks",
        "gateways/balancer/edge.py Edge.update_clients",
        lambda patch: patch.setattr(Edge, "update_clients", _believe),
        _D.test_edge_estimate_ignores_stale_gossip_value,
        "test_edge_estimate_ignores_stale_gossip_value",
    ),
)
