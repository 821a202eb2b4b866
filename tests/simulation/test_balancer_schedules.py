"""Schedules of a balancer in a simulated cluster: edges and routers die, restart, or are cut from each other."""

import random

import pytest

from tests.simulation.balancer_process import BalancerProcess
from tests.simulation.scene import Scene

EDGES, ROUTERS = ("e1", "e2", "e3"), ("r1", "r2", "r3")
LEASE_S = 2.0
LAST_PICK_S = LEASE_S + 0.5
FIRST_PICK_S = 1.0


def balanced(seed: int = 1) -> tuple[Scene, BalancerProcess]:
    scene = Scene(seed, routers=3, edges=3)
    balancer = BalancerProcess(scene.cluster, "b1")
    balancer.start(1)
    scene.until(lambda: len({edge for _, edge in balancer.picks}) == 3)
    return scene, balancer


def now(scene: Scene) -> float:
    return scene.cluster.scheduler.now


def last_pick(balancer: BalancerProcess, edge: str) -> float:
    return max(at for at, picked in balancer.picks if picked == edge)


def test_killed_edge_is_not_picked_until_it_restarts() -> None:
    """Its last pick is an attempt within the lease; no client is given up."""
    scene, balancer = balanced()
    killed = now(scene)
    scene.kill("e1")
    scene.run(6.0)
    assert last_pick(balancer, "e1") <= killed + LAST_PICK_S
    scene.start("e1")
    scene.until(scene.cluster.ready)
    ready = now(scene)
    scene.until(lambda: last_pick(balancer, "e1") > ready, FIRST_PICK_S)
    assert not balancer.failed


def test_gossip_alone_makes_no_candidate() -> None:
    """An edge that the routers do not reach is alive in gossip and dead in the map: it gets no client."""
    scene, balancer = balanced()
    cut = now(scene)
    for router in ROUTERS:
        scene.cut("e2", router)
    scene.run(8.0)
    assert last_pick(balancer, "e2") <= cut + LAST_PICK_S
    assert not balancer.failed


def test_last_map_is_used_without_routers() -> None:
    """Edges without a lease refuse by themselves; the first router that restarts updates the map."""
    scene, balancer = balanced()
    scene.kill(*ROUTERS)
    scene.run(1.0)
    assert balancer.follower.age_s(balancer.clock()) > 0.5
    assert {edge for at, edge in balancer.picks if at > now(scene) - 0.5} == set(EDGES)
    scene.run(3.0)
    scene.start(*ROUTERS)
    scene.until(lambda: balancer.follower.age_s(balancer.clock()) == 0.0)
    scene.until(scene.cluster.ready, 20.0)
    before = balancer.placed
    scene.until(lambda: balancer.placed > before + 50)


def test_lagging_router_does_not_delay_the_balancer() -> None:
    """It is cut from the other routers but not from the balancer, which follows those as well."""
    scene, balancer = balanced()
    behind = next(router for router in ROUTERS if router != scene.leader())
    for other in ROUTERS:
        if other != behind:
            scene.cut(behind, other)
    killed = now(scene)
    scene.kill("e3")
    scene.run(6.0)
    assert last_pick(balancer, "e3") <= killed + LAST_PICK_S and not balancer.failed


@pytest.mark.parametrize("seed", range(4))
def test_deaths_of_nodes_fail_no_client(seed: int) -> None:
    """One edge and one router at a time, in random order, and restarts of the balancer."""
    scene, balancer = balanced(seed)
    rng = random.Random(seed)
    dead: dict[str, float] = {}
    for turn in range(6):
        for name in (rng.choice(EDGES), rng.choice(ROUTERS)):
            scene.kill(name)
            if name in EDGES:
                dead[name] = now(scene)
        if turn == 3:
            balancer.end()
            balancer.start(2)
        scene.run(rng.uniform(0.5, 5.0))
        for name, since in dead.items():
            assert last_pick(balancer, name) <= since + LAST_PICK_S
        dead.clear()
        for name in (*ROUTERS, *EDGES):
            scene.start(name)
        scene.until(scene.cluster.ready, 20.0)
        scene.run(rng.uniform(0.5, 2.0))
    assert not balancer.failed and balancer.placed > 300
