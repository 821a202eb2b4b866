"""The live nodes without a link to this one, for the heartbeats to the leader.

A lease proves only the link to the leader. Two live nodes without a link would wait for each other without end, and
only the leader can resolve that (docs/adr/0011). Pure: its owner reports links. A silent link is closed by its own
timeout (``wire/links/connection.py``, the edge's loop), so a missing link is a real failure. Source: docs/protocol.md
rule 2.8.
"""

from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import PeerKey

__all__ = ["Unreached"]


class Unreached:
    """Links of one node to all others: all pairs of live nodes should have one."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._up: dict[str, int] = {}  # node -> incarnation
        self._unlinked: dict[tuple[str, int], float] = {}  # live, without a link -> start time
        self._walked: tuple[ClusterMap, int] | None = None  # map and epoch of that result

    def link_up(self, peer: PeerKey) -> None:
        """A link to this incarnation was established."""
        self._up[peer.node] = peer.incarnation
        self._walked = None

    def link_down(self, peer: PeerKey) -> None:
        """It ended."""
        if self._up.get(peer.node) == peer.incarnation:
            del self._up[peer.node]
            self._walked = None

    def is_linked(self, node: str) -> bool:
        """Return whether a link to some incarnation of a node exists."""
        return node in self._up

    def nodes(self, now: float, cluster_map: ClusterMap) -> list[str]:
        """Return the live nodes without a link for a lease's duration, by name; call it several times per lease.

        The nodes are scanned only after links or the map have changed.
        """
        walked = self._walked
        if walked is None or walked[0] is not cluster_map or walked[1] != cluster_map.epoch:
            self._walked = cluster_map, cluster_map.epoch
            unlinked = [
                (name, entry.incarnation)
                for name, entry in sorted(cluster_map.nodes.items())
                if entry.alive and name != self._node and self._up.get(name) != entry.incarnation
            ]
            self._unlinked = {one: self._unlinked.get(one, now) for one in unlinked}
        return [name for (name, _), since in self._unlinked.items() if now - since > cluster_map.lease_s]
