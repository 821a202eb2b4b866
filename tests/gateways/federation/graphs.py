"""Federations for tests (lines, the predecessor's grid, the paper's graph) and queries about them."""

from __future__ import annotations

from collections import deque
from typing import Any

from gateways.federation.agent import Agent
from tests.gateways.federation.federation_simulation import FederationSimulation

__all__ = [
    "GRID",
    "PAPER",
    "breadth_first",
    "core_of",
    "cores_of",
    "grid",
    "idle_messages",
    "knows_all",
    "line",
    "links_of",
    "make",
    "paper",
    "subscribe",
]

# Nine agents in three rows of three, 1 to 9, as in the predecessor's grid.
GRID = (
    *((str(each), str(each + 1)) for each in range(1, 10) if each % 3),
    *((str(each), str(each + 3)) for each in range(1, 7)),
)
# The paper's six brokers and eight links.
PAPER = (
    ("150", "22"),
    ("150", "230"),
    ("150", "180"),
    ("150", "217"),
    ("230", "180"),
    ("230", "22"),
    ("243", "217"),
    ("243", "180"),
)


def make(
    links: tuple[tuple[str, str], ...], seed: int = 1, latency_s: float = 0.005, **settings: Any
) -> FederationSimulation:
    simulation = FederationSimulation(seed, latency_s=latency_s)
    for name in sorted({name for link in links for name in link}):
        simulation.add(name, **settings)
    for one, other in links:
        simulation.link(one, other)
    simulation.start()
    return simulation


def line(count: int, **settings: Any) -> FederationSimulation:
    return make(tuple((f"n{each}", f"n{each + 1}") for each in range(1, count)), **settings)


def grid(**settings: Any) -> FederationSimulation:
    return make(GRID, **settings)


def paper(**settings: Any) -> FederationSimulation:
    return make(PAPER, **settings)


def core_of(simulation: FederationSimulation, name: str) -> Agent:
    core = simulation.processes[name].core
    assert core is not None
    return core


def cores_of(simulation: FederationSimulation, topic_filter: str) -> set[str]:
    found = set()
    for process in simulation.processes.values():
        assert process.core is not None
        state = process.core.election.topics.get(topic_filter)
        found.add(state.core if state is not None else "none")
    return found


def subscribe(simulation: FederationSimulation, name: str, topic_filter: str, client: str = "s") -> None:
    simulation.processes[name].broker.subscribe_client(client, topic_filter)


def breadth_first(links: list[tuple[str, str]], start: str) -> dict[str, tuple[int, set[str]]]:
    """Return distance and next hops for each name, by a search that is independent of the product."""
    around: dict[str, set[str]] = {}
    for one, other in links:
        around.setdefault(one, set()).add(other)
        around.setdefault(other, set()).add(one)
    found: dict[str, tuple[int, set[str]]] = {}
    for hop in around[start]:
        distance, ahead = {start: 0, hop: 1}, deque([hop])
        while ahead:
            name = ahead.popleft()
            for other in around[name] - distance.keys():
                distance[other] = distance[name] + 1
                ahead.append(other)
        for name, steps in distance.items():
            if name != start:
                best, hops = found.get(name, (steps, set()))
                found[name] = (min(best, steps), {hop} if steps < best else hops | ({hop} if steps == best else set()))
    return found


def knows_all(simulation: FederationSimulation, links: list[tuple[str, str]]) -> bool:
    """Return whether each agent knows the distances and next hops of the graph."""
    for name in simulation.processes:
        overlay = core_of(simulation, name).overlay
        for other, (distance, hops) in breadth_first(links, name).items():
            if overlay.distance(other) != distance or set(overlay.next_hops(other)) != hops:
                return False
    return True


def links_of(simulation: FederationSimulation) -> list[tuple[str, str]]:
    return [(min(pair), max(pair)) for pair in simulation.lines]


def idle_messages(simulation: FederationSimulation, seconds: float = 20.0, settles_s: float = 8.0) -> float:
    """Return the messages per second that an agent sends while no client publishes."""
    simulation.run(settles_s)
    before = sum(simulation.sent.values())
    simulation.run(seconds)
    return (sum(simulation.sent.values()) - before) / seconds / len(simulation.processes)
