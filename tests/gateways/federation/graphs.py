"""Federations that the tests tell stories about: lines, the grid of the predecessor, the graph of the paper."""

from __future__ import annotations

from typing import Any

from tests.gateways.federation.federation_simulation import FederationSimulation

__all__ = ["PAPER_LINKS", "grid", "line", "make", "paper"]

# The paper's six brokers and eight links.
PAPER_LINKS = (
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
    """Return nine agents in three rows of three, 1 to 9."""
    across = tuple((str(each), str(each + 1)) for each in range(1, 10) if each % 3)
    down = tuple((str(each), str(each + 3)) for each in range(1, 7))
    return make(across + down, **settings)


def paper(**settings: Any) -> FederationSimulation:
    return make(PAPER_LINKS, **settings)
