"""Links between nodes, as observed by this router and reported to the leader: shards to move, leases to end.

A lease proves one link, to the leader. Shards of a silent router move before its lease expires, which is safe: a new
owner does not depend on the old lease. A node that others cannot reach loses its lease: the worse-connected end first,
one at a time, never the last in-sync replica. Pure except for the table of links. Rules: docs/protocol.md rule 2.8.
"""

from collections.abc import Callable, Mapping

from router.placement.ring import RingNode, propose_owners
from wire.messages.cluster_map import ClusterMap, NodeIncarnation
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, TIER_STORAGE, PeerKey

__all__ = ["Reachability"]

LINK_DOWN_S = 0.25  # a router whose link is down for longer loses its shards; a reconnect takes less
SILENT_LEASES = 0.75  # so does a router without a heartbeat for this part of a lease, even with a link
PATIENCE_LEASES = 2  # age of a complaint that ends a lease
# At equal counts: an edge's clients reconnect, a shard gets another owner; a storage node's end costs a copy.
TIER_ORDER = {TIER_EDGE: 0, TIER_ROUTER: 1, TIER_STORAGE: 2}


class Reachability:
    """Links of this router, and the decisions from all nodes' links."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._up: dict[str, int] = {}  # node -> incarnation
        self._down_since: dict[str, float] = {}
        self._complaints_since: dict[
            tuple[NodeIncarnation, NodeIncarnation], float
        ] = {}  # (reporter, peer) -> start time

    def link_up(self, peer: PeerKey) -> None:
        """Record a new link."""
        self._up[peer.node] = peer.incarnation
        self._down_since.pop(peer.node, None)

    def link_down(self, peer: PeerKey, now: float) -> None:
        """Record the end of a link, unless a newer one exists."""
        if self._up.get(peer.node) == peer.incarnation:
            del self._up[peer.node]
            self._down_since[peer.node] = now

    def unreachable(self, now: float, cluster_map: ClusterMap, waited: set[str]) -> list[str]:
        """Return the live nodes whose link is down for a lease, or that did not answer in time."""
        for node in [node for node in self._down_since if node not in cluster_map.nodes]:
            del self._down_since[node]
        down = {node for node, since in self._down_since.items() if now - since > cluster_map.lease_s}
        return sorted(
            node for node in down | waited if (entry := cluster_map.nodes.get(node)) is not None and entry.alive
        )

    def reassign_shards(
        self, now: float, cluster_map: ClusterMap, silent_s: Callable[[float, NodeIncarnation], float]
    ) -> dict[int, str]:
        """Return new owners for the shards of silent routers."""
        routers = cluster_map.live(TIER_ROUTER)
        silent_nodes = set()
        for entry in routers:
            if entry.node == self._node:
                continue
            down = now - self._down_since.get(entry.node, now) > LINK_DOWN_S
            silent = silent_s(now, (entry.node, entry.incarnation)) > SILENT_LEASES * cluster_map.lease_s
            if down or silent:
                silent_nodes.add(entry.node)
        if not silent_nodes:
            return {}
        owned = [number for number, shard in enumerate(cluster_map.shards) if shard.owner in silent_nodes]
        staying = [entry for entry in routers if entry.node not in silent_nodes and not entry.stops]
        left = [RingNode(entry.node, entry.weight, entry.zone) for entry in staying]
        if not owned or not left:
            return {}
        proposal = propose_owners(left, cluster_map.base_shards)
        return {number: proposal[number % len(proposal)] for number in owned}

    def worst_connected(self, now: float, cluster_map: ClusterMap, complaints: Mapping[str, tuple[str, ...]]) -> str:
        """Return the live node whose lease should end, or "": the worse-connected of two that do not reach each other.

        A complaint counts after two leases about the same two incarnations: a leader may know a new node before all
        its links are established.

        Args:
            now: Seconds.
            cluster_map: As of now.
            complaints: Node -> live nodes that it does not reach.
        """
        reports = {
            (incarnation, other_incarnation)
            for node, others in complaints.items()
            for other in others
            if node != other
            and (incarnation := _live_incarnation(cluster_map, node))
            and (other_incarnation := _live_incarnation(cluster_map, other))
        }
        self._complaints_since = {pair: self._complaints_since.get(pair, now) for pair in sorted(reports)}
        pairs = {
            tuple(sorted((incarnation[0], other[0])))
            for (incarnation, other), since in self._complaints_since.items()
            if now - since >= PATIENCE_LEASES * cluster_map.lease_s
        }
        missing: dict[str, int] = {}
        for pair in pairs:
            for node in pair:
                missing[node] = missing.get(node, 0) + 1
        by_name = sorted(missing, reverse=True)
        for node in sorted(by_name, key=lambda name: (-missing[name], TIER_ORDER[cluster_map.nodes[name].tier])):
            # The leader decides, so it keeps its own lease.
            if node != self._node and not _last_replica(cluster_map, node):
                return node
        return ""


def _live_incarnation(cluster_map: ClusterMap, node: str) -> NodeIncarnation | None:
    entry = cluster_map.nodes.get(node)
    return (node, entry.incarnation) if entry is not None and entry.alive else None


def _last_replica(cluster_map: ClusterMap, node: str) -> bool:
    """True if the end of a node would leave a partition without a live in-sync replica."""
    if cluster_map.nodes[node].tier != TIER_STORAGE:
        return False
    live = {entry.node for entry in cluster_map.live(TIER_STORAGE)} - {node}
    return any(node in placement.in_sync and not live & set(placement.in_sync) for placement in cluster_map.partitions)
