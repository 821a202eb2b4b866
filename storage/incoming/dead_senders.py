"""Frames of incarnations that the map declares dead are dropped.

The cluster has forgotten a dead edge's state, and its client may use another edge. Its messages would be stored after
newer ones.
"""

from collections.abc import Callable

from storage.hosting.iteration import Iteration
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_ROUTER, PeerKey

__all__ = ["DeadSenders"]


class DeadSenders:
    """The dead senders of one node's frames.

    Args:
        iteration: Counts.
        cluster_map: Returns the map that this node has applied.
    """

    def __init__(self, iteration: Iteration, cluster_map: Callable[[], ClusterMap]) -> None:
        self._iteration = iteration
        self._map = cluster_map

    def drops(self, peer: PeerKey) -> bool:
        """Return whether a frame is from an incarnation that is dead in the map, and count it. Routers never are."""
        cluster_map = self._map()
        if peer.tier == TIER_ROUTER or not cluster_map.epoch or cluster_map.is_alive(peer.node, peer.incarnation):
            return False
        entry = cluster_map.nodes.get(peer.node)
        if entry is None or entry.incarnation < peer.incarnation:
            return False
        self._iteration.count("frames_of_dead")
        return True
