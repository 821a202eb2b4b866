"""Current roles of other nodes in one node's view: registered members, and trusted routers.

A certificate proves a name and a tier, and outlives the node's place in the cluster. So each message except
introductions is accepted only from a sender in its current role (``wire/links/allowed.py``, ``Sender``). Edges and
storage nodes use their map, routers use the members of their Raft group. Pure rules. Source: docs/protocol.md rule
1.11.
"""

from collections.abc import Callable, Collection

from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_ROUTER, PeerKey

__all__ = ["Roster", "is_router", "is_shard_owner"]


class Roster:
    """The roles of other nodes at one node.

    Args:
        cluster_map: Returns this node's map.
        group: At a router, returns the members of its Raft group, empty while it joins; None: use the map for routers.
        at_router: Unregistered nodes may link to this node.
    """

    def __init__(
        self,
        cluster_map: Callable[[], ClusterMap],
        group: Callable[[], Collection[str]] | None = None,
        *,
        at_router: bool = False,
    ) -> None:
        self._map = cluster_map
        self._group = group
        self._at_router = at_router

    def is_registered(self, peer: PeerKey) -> bool:
        """Return whether the map has this incarnation registered and alive."""
        entry = self._map().nodes.get(peer.node)
        return entry is not None and entry.tier == peer.tier and entry.alive and entry.incarnation == peer.incarnation

    def is_member(self, peer: PeerKey) -> bool:
        """Return whether an edge or a storage node sends in its role.

        Routers accept links of all holders of a certificate, so their map must have the incarnation. Other nodes check
        that at admission (``wire/links/admission.py``): here the map must only not have it as replaced.
        """
        return self.is_registered(peer) or (not self._at_router and not self.is_over(peer))

    def is_over(self, peer: PeerKey) -> bool:
        """Return whether the map has this incarnation of an edge or storage node as dead, or has a later one."""
        entry = self._map().nodes.get(peer.node)
        if peer.tier == TIER_ROUTER or entry is None or entry.tier != peer.tier:
            return False
        return entry.incarnation > peer.incarnation or (entry.incarnation == peer.incarnation and not entry.alive)

    def is_unknown(self, peer: PeerKey) -> bool:
        """Return whether the map has no node of this name in any state."""
        return peer.node not in self._map().nodes

    def is_router(self, peer: PeerKey) -> bool:
        """Return whether this incarnation sends as a router of the cluster."""
        if self._group is None:
            return is_router(self._map(), peer)
        return peer.tier == TIER_ROUTER and peer.node in self._group()


def is_shard_owner(cluster_map: ClusterMap, router: str, shard: int) -> bool:
    """Return whether a map names a router as the owner of a shard; False for a shard that the map does not have."""
    return shard < len(cluster_map.shards) and cluster_map.shards[shard].owner == router


def is_router(cluster_map: ClusterMap, peer: PeerKey) -> bool:
    """Return whether a map accepts a peer as a router.

    A later incarnation of a live router is accepted too: it restarted, and only its own steps can update this map. If
    the map has no live router, as before the first map, any router is accepted: this node dialled it itself, and
    accepts no incoming link of a router (``wire/links/admission.py``).
    """
    if peer.tier != TIER_ROUTER:
        return False
    entry = cluster_map.nodes.get(peer.node)
    if entry is not None and entry.tier == TIER_ROUTER and entry.alive:
        return peer.incarnation >= entry.incarnation
    return not any(each.tier == TIER_ROUTER and each.alive for each in cluster_map.nodes.values())
