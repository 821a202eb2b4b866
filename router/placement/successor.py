"""The router that leads after one that stops: each remaining router in order, until one has taken over.

A leader transfers leadership after its shards moved: the next leader does not know yet which epochs each node has
acknowledged. Sans-IO.
"""

from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_ROUTER

__all__ = ["Successor"]

TRANSFER_AGAIN_S = 0.5  # before another router is tried: the last one lags or is unreachable


class Successor:
    """A stopping leader's selection of the next one."""

    def __init__(self) -> None:
        self._asked = 0
        self._next = float("-inf")

    def take_next(self, now: float, cluster_map: ClusterMap) -> str:
        """Return the router to transfer to now; "" while the last attempt runs, or if none stays."""
        if now < self._next:
            return ""
        self._next = now + TRANSFER_AGAIN_S
        staying = [entry.node for entry in cluster_map.live(TIER_ROUTER) if not entry.stops]
        self._asked += 1
        return staying[self._asked % len(staying)] if staying else ""
