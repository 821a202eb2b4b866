"""Ways of messages: which neighbour one is given to for a destination, as overlay, meshes and policies have it.

Pure logic; what becomes of messages is ``courier.py``.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateways.federation.agent_context import AgentContext
from gateways.federation.distribution_trees import DistributionTrees
from gateways.federation.overlay import Overlay

__all__ = ["NextHops"]


class NextHops:
    """See the module."""

    def __init__(self, parts: AgentContext, overlay: Overlay, meshes: DistributionTrees) -> None:
        self._parts, self._overlay, self._meshes = parts, overlay, meshes
        self._found: dict[str, tuple[str, ...]] = {}

    def forget(self) -> None:
        """Find all ways anew."""
        self._found.clear()

    def to(self, destination: str) -> tuple[str, ...]:
        """Return the neighbours that lead to an agent at the least distance, those of the mesh first."""
        found = self._found.get(destination)
        if found is None:
            hops = self._overlay.next_hops(destination)
            behind = tuple(each for each in hops if self._meshes.is_behind(destination, each))
            found = self._found[destination] = (*behind, *(each for each in hops if each not in behind))
        return found

    def split(self, topic: str, destinations: Iterable[str]) -> Iterable[tuple[str, str, tuple[str, ...]]]:
        """Return (neighbour, "", destinations), or ("", reason, destinations).

        The reason is "export" where policies forbid all ways, and "" where none is known.
        """
        found: dict[tuple[str, str], list[str]] = {}
        for destination in destinations:
            found.setdefault(self.of(topic, destination), []).append(destination)
        return [(name, reason, tuple(those)) for (name, reason), those in found.items()]

    def of(self, topic: str, destination: str) -> tuple[str, str]:
        """Return (neighbour, "") for one destination, or ("", reason)."""
        ways, neighbours = self._found.get(destination) or self.to(destination), self._parts.neighbours
        for each in ways:
            if neighbours[each].may_have(topic):
                return each, ""
        return "", "export" if ways else ""
