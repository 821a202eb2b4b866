"""Next hops of messages: the neighbour for a destination, from overlay, trees and policies.

Pure logic; messages are handled in ``forwarder.py``.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateways.federation.agent_context import AgentContext
from gateways.federation.distribution_trees import DistributionTrees
from gateways.federation.overlay import Overlay

__all__ = ["NextHops"]


class NextHops:
    """See the module."""

    def __init__(self, parts: AgentContext, overlay: Overlay, trees: DistributionTrees) -> None:
        self._parts, self._overlay, self._trees = parts, overlay, trees
        self._found: dict[str, tuple[str, ...]] = {}

    def clear(self) -> None:
        """Clear the cache."""
        self._found.clear()

    def get_hops(self, destination: str) -> tuple[str, ...]:
        """Return the neighbours at the least distance to an agent, those of the tree first."""
        found = self._found.get(destination)
        if found is None:
            hops = self._overlay.next_hops(destination)
            behind = tuple(each for each in hops if self._trees.is_behind(destination, each))
            found = self._found[destination] = (*behind, *(each for each in hops if each not in behind))
        return found

    def group(self, topic: str, destinations: Iterable[str]) -> Iterable[tuple[str, str, tuple[str, ...]]]:
        """Return (neighbour, "", destinations), or ("", reason, destinations).

        The reason is "export" if policies forbid all next hops, and "" if none is known.
        """
        found: dict[tuple[str, str], list[str]] = {}
        for destination in destinations:
            found.setdefault(self.choose(topic, destination), []).append(destination)
        return [(name, reason, tuple(those)) for (name, reason), those in found.items()]

    def choose(self, topic: str, destination: str) -> tuple[str, str]:
        """Return (neighbour, "") for one destination, or ("", reason)."""
        hops, neighbours = self._found.get(destination) or self.get_hops(destination), self._parts.neighbours
        for each in hops:
            if neighbours[each].may_have(topic):
                return each, ""
        return "", "export" if hops else ""
