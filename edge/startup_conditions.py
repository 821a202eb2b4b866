"""Reason why an edge does not serve clients yet, in one line; ``wire/node/startup_log.py`` has the shared texts."""

from collections.abc import Callable, Sequence

from edge.cluster.peer_table import PeerTable
from edge.node.node import EdgeNode
from wire.node.startup_log import MapGaps, missing_from_routers

__all__ = ["StartupConditions"]


class StartupConditions:
    """Reasons of one edge.

    Args:
        node: The edge.
        is_ready: Returns whether every partition has responded.
        seeds: Router addresses (node.seeds).
        peers: Knows why a router that responded made no link.
    """

    def __init__(self, node: EdgeNode, is_ready: Callable[[], bool], seeds: Sequence[str], peers: PeerTable) -> None:
        self._node = node
        self._is_ready = is_ready
        self._seeds = seeds
        self._peers = peers
        self._gaps = MapGaps()

    def reason(self, now: float) -> str:
        """Return why the edge does not serve clients, "" if it does."""
        node = self._node
        missing = missing_from_routers(node.lease, now, self._seeds, self._peers.router_fault)
        missing = missing or self._gaps.reason(node.map)
        if missing:
            return missing
        if not node.lease.knows_policy:
            return f"policy epoch {node.lease.policy_floor} was not received from a router yet"
        for primary in self._gaps.primaries(node.map):
            peer = node.peer_of(primary)
            if peer is None or peer.conn is None:
                entry = node.map.nodes.get(primary)
                return f"no link to {primary} at {entry.address if entry is not None else 'an unknown address'}"
        return "" if self._is_ready() else "some partitions have not answered yet"
