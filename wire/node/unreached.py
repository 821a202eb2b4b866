"""Which live nodes this one does not reach: what its heartbeats tell the leader.

A lease proves one link, the one to the leader. Two live nodes without a link wait for each other for ever, and only the
leader may end that (docs/adr/0011). Pure: its owner says when links stand and fall. A link that stands and carries
nothing falls by its own silence (``wire/links/connection.py``, the edge's loop), so here down is down.
Source: docs/protocol.md rule 2.8.
"""

from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import PeerKey

__all__ = ["Unreached"]


class Unreached:
    """Links of one node to all others: every pair of live nodes has one."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._up: dict[str, int] = {}  # node -> incarnation
        self._missed: dict[tuple[str, int], float] = {}  # live, without a link -> since when
        self._walked: tuple[ClusterMap, int] | None = None  # the map and its epoch that those were found in

    def link_up(self, peer: PeerKey) -> None:
        """A link to this incarnation stands."""
        self._up[peer.node] = peer.incarnation
        self._walked = None

    def link_down(self, peer: PeerKey) -> None:
        """It ended."""
        if self._up.get(peer.node) == peer.incarnation:
            del self._up[peer.node]
            self._walked = None

    def is_linked(self, node: str) -> bool:
        """Return whether a link to some incarnation of a node stands."""
        return node in self._up

    def nodes(self, now: float, cluster_map: ClusterMap) -> list[str]:
        """Return the live nodes without a link for a lease, by name; call it at least some times per lease.

        All nodes are looked at where links or the map have changed, and not for each heartbeat.
        """
        walked = self._walked
        if walked is None or walked[0] is not cluster_map or walked[1] != cluster_map.epoch:
            self._walked = cluster_map, cluster_map.epoch
            missed = [
                (name, entry.incarnation)
                for name, entry in sorted(cluster_map.nodes.items())
                if entry.alive and name != self._node and self._up.get(name) != entry.incarnation
            ]
            self._missed = {one: self._missed.get(one, now) for one in missed}
        return [name for (name, _), since in self._missed.items() if now - since > cluster_map.lease_s]
