"""Reason why an edge does not serve clients yet, in one line; the words of all tiers are in ``wire/waiting.py``."""

from collections.abc import Sequence

from edge.core import EdgeCore
from wire.waiting import MapGaps, missing_from_routers

__all__ = ["EdgeWaiting"]


class EdgeWaiting:
    """Reasons of one edge.

    Args:
        seeds: Where it looks for routers (node.seeds).
    """

    def __init__(self, core: EdgeCore, seeds: Sequence[str]) -> None:
        self._core = core
        self._seeds = seeds
        self._gaps = MapGaps()

    def reason(self, now: float) -> str:
        """Return why the edge does not serve clients, "" if it does."""
        core = self._core
        missing = missing_from_routers(core.lease, now, self._seeds) or self._gaps.reason(core.map)
        if missing:
            return missing
        for primary in self._gaps.primaries(core.map):
            peer = core.peers.get(primary)
            if peer is None or peer.conn is None:
                entry = core.map.nodes.get(primary)
                return f"no link to {primary} at {entry.address if entry is not None else 'an unknown address'}"
        return "" if core.ready else "not every partition has answered yet that it serves"
