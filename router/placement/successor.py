"""The router to lead in place of one that stops: each that stays in turn, until one has taken over.

A leader hands over when it is relieved of its shards, not sooner: the next one has yet to hear what each node has
acknowledged. Sans-IO.
"""

from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_ROUTER

__all__ = ["Successor"]

TRANSFER_AGAIN_S = 0.5  # with another router: the one asked before is behind, or not reached


class Successor:
    """The search of one leader for another."""

    def __init__(self) -> None:
        self._asked = 0
        self._next = float("-inf")

    def take_next(self, now: float, cluster_map: ClusterMap) -> str:
        """Return the router to hand over to now, "" while the last one has time, or if none stays."""
        if now < self._next:
            return ""
        self._next = now + TRANSFER_AGAIN_S
        staying = [entry.node for entry in cluster_map.live(TIER_ROUTER) if not entry.stops]
        self._asked += 1
        return staying[self._asked % len(staying)] if staying else ""
