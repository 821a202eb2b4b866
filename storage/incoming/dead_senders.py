"""Nodes whose incarnation the map calls dead: frames that they sent before arrive late, and are dropped.

The cluster has forgotten what a dead edge sent, and its client may have gone on elsewhere. A message of it taken now
would stand behind newer ones.
"""

from collections.abc import Callable

from storage.hosting.iteration import Iteration
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_ROUTER, PeerKey

__all__ = ["DeadSenders"]


class DeadSenders:
    """The dead among the senders of one node's frames.

    Args:
        turn: Counts.
        cluster_map: Returns the map as this node has it.
    """

    def __init__(self, turn: Iteration, cluster_map: Callable[[], ClusterMap]) -> None:
        self._turn = turn
        self._map = cluster_map

    def drops(self, peer: PeerKey) -> bool:
        """Return True, and count, if a frame is of an incarnation that is over by the map. Routers are never."""
        cluster_map = self._map()
        if peer.tier == TIER_ROUTER or not cluster_map.epoch or cluster_map.is_alive(peer.node, peer.incarnation):
            return False
        entry = cluster_map.nodes.get(peer.node)
        if entry is None or entry.incarnation < peer.incarnation:
            return False
        self._turn.count("frames_of_dead")
        return True
