"""Drains of edges in whole clusters: 503, then refusals, then clients leave at the rate; sessions resume elsewhere.

`python -m tests.simulation --drains` draws drains among all other faults.
"""

import pytest

from edge.drain import REFUSE_AFTER_S
from tests.simulation.edge_process import DRAIN_RATE, EdgeProcess
from tests.simulation.faults import order_drain
from tests.simulation.scene import EPHEMERAL, Scene
from tests.simulation.sim_client import SimClient
from tests.simulation.simulation import Mode, Options, run_seed
from tests.simulation.test_balancer_schedules import FIRST_PICK_S, balanced, last_pick, now

SLACK_S = 0.3  # for the map to reach the edge, and for iterations


def drain(scene: Scene, edge: str, state: str = "draining") -> float:
    """Order a drain; return when the map shows it."""
    order_drain(scene.cluster, edge, state)
    scene.until(lambda: scene.map.nodes[edge].admin_state == state)
    return now(scene)


def is_refused(scene: Scene, edge: str) -> bool:
    node = scene.cluster.nodes[edge]
    assert isinstance(node, EdgeProcess)
    return not node.listens(2)


def test_drain_refuses_new_clients_then_disconnects_at_the_rate() -> None:
    """A balancer has time to see the 503, and every session resumes at the other edge."""
    scene = Scene()
    clients: list[SimClient] = []
    for number in range(DRAIN_RATE * 2):
        durable = number % 2 == 0
        name = f"c{number}"
        clients.append(scene.client(name, "e1", None if durable else EPHEMERAL, f"t/{name}"))
    publisher = scene.client("publisher", "e2", EPHEMERAL)
    began = drain(scene, "e1")
    scene.until(lambda: is_refused(scene, "e1"))
    assert now(scene) >= began + REFUSE_AFTER_S - SLACK_S
    assert all(client.connected for client in clients)
    shut, left = now(scene), len(clients)
    while left:
        scene.run(0.1)
        left = sum(client.connected for client in clients)
        gone = len(clients) - left
        assert gone <= DRAIN_RATE * (now(scene) - shut + SLACK_S)
    assert now(scene) - shut <= len(clients) / DRAIN_RATE + 1.0
    for client in clients:
        if client.options.session_expiry_interval_s:
            scene.publish(publisher, f"t/{client.process}", f"for-{client.process}")
            scene.connect(client, "e2")
            assert client.session_present
    drain(scene, "e1", "")
    scene.until(lambda: not is_refused(scene, "e1"))
    scene.connect(clients[1], "e1")
    scene.judge()


def test_cancelled_drain_disconnects_no_further_client() -> None:
    """Before the listener closes, no client leaves; while clients leave, the remaining ones stay."""
    scene = Scene()
    clients = [scene.client(f"c{number}", "e1", EPHEMERAL) for number in range(DRAIN_RATE)]
    drain(scene, "e1")
    scene.run(1.0)
    drain(scene, "e1", "")
    scene.run(5.0)
    assert all(client.connected for client in clients) and not is_refused(scene, "e1")
    drain(scene, "e1")
    scene.until(lambda: not all(client.connected for client in clients))
    drain(scene, "e1", "")
    scene.run(0.2)
    left = sum(client.connected for client in clients)
    assert left > len(clients) // 2
    scene.run(5.0)
    assert sum(client.connected for client in clients) == left and not is_refused(scene, "e1")
    scene.judge()


def test_killed_draining_edge_restarts_drained() -> None:
    """The map contains the order, so none of its incarnations accepts clients."""
    scene = Scene()
    drain(scene, "e1")
    scene.run(1.0)
    scene.kill("e1")
    scene.run(1.0)
    scene.start("e1")
    scene.until(lambda: scene.map.nodes["e1"].alive)
    scene.run(5.0)
    assert is_refused(scene, "e1") and scene.map.nodes["e1"].admin_state == "draining"
    drain(scene, "e1", "")
    scene.until(lambda: not is_refused(scene, "e1"))
    scene.client("late", "e1", EPHEMERAL)
    scene.judge()


def test_balancer_picks_no_draining_edge() -> None:
    """No client meets a closed listener: the map shows the drain three seconds before."""
    scene, balancer = balanced()
    for edge in ("e1", "e2", "e3"):
        began = drain(scene, edge)
        scene.run(REFUSE_AFTER_S + 2.0)
        assert last_pick(balancer, edge) <= began + SLACK_S and is_refused(scene, edge)
        opened = drain(scene, edge, "")
        scene.until(lambda edge=edge, opened=opened: last_pick(balancer, edge) > opened, FIRST_PICK_S)
    assert not balancer.failed


@pytest.mark.parametrize(("seed", "mode"), [(500_000, "safety"), (500_001, "liveness")])
def test_random_seed_with_drains(seed: int, mode: Mode) -> None:
    """No acknowledged message is lost under any other faults, and finally every client is served."""
    result = run_seed(seed, Options(mode=mode, seconds=3.0, drains=True))
    assert not result.failures, result.failures
    assert any(fault.kind == "drain" for fault in result.faults)
