"""Effects of a new map at this edge: dead peers are struck off, partitions get primaries, shards get owners.

Called before the epoch is acknowledged, so everything here is in force by then.
"""

from typing import TYPE_CHECKING

from wire.cluster_map import ClusterMap, Delegation, PartitionEntry, ShardEntry
from wire.messages import ReportRoutes

if TYPE_CHECKING:
    from edge.core import EdgeCore

__all__ = ["MapFollower"]

REPORT_AGAIN_S = 0.1


class MapFollower:
    """Carries map changes into one edge's tables."""

    def __init__(self, edge: "EdgeCore") -> None:
        self._edge = edge
        self._partitions: list[PartitionEntry] = []
        self._shards: list[ShardEntry] = []
        self._delegations: tuple[Delegation, ...] = ()
        self._active = False
        self._unreported: set[int] = set()  # shards whose owner has not been told this edge's filters
        self._report_at = float("inf")

    def moved(self, cluster_map: ClusterMap) -> None:
        """The map is at a new epoch."""
        edge = self._edge
        gone = edge.peers.strike_dead(cluster_map)
        edge.peers.know(cluster_map)
        self._partitions_moved(cluster_map)
        if edge.lease.active:
            self._shards_moved(cluster_map)
        if gone:
            edge.peers_changed()

    def _partitions_moved(self, cluster_map: ClusterMap) -> None:
        edge = self._edge
        former, self._partitions = self._partitions, list(cluster_map.partitions)
        edge.hot.set_partitions(len(self._partitions))
        for number, placement in enumerate(cluster_map.partitions):
            if number < len(former) and former[number] == placement:
                continue
            self._bind(number, placement)
            edge.requests.placement_changed(number, edge.now)

    def _bind(self, number: int, placement: PartitionEntry) -> None:
        edge = self._edge
        peer = edge.peers.get(placement.primary) if placement.primary else None
        edge.hot.set_epoch(number, placement.epoch)
        edge.hot.set_primary(number, peer)
        if peer is not None:
            edge.hot.replay_partition(number, peer)
        for client in edge.clients_of(number):
            if client.session and not client.conn.closed:
                edge.hot.set_home(client.conn, peer)

    def storage_up(self, node: str) -> None:
        """A link to a storage node stands: its partitions can be reached."""
        edge = self._edge
        for number, placement in enumerate(self._partitions):
            if placement.primary == node and edge.hot.primaries[number] is not edge.peers.get(node):
                self._bind(number, placement)
        edge.requests.node_ready(node, edge.now)

    def storage_linked(self) -> bool:
        """True if the primaries of all partitions are linked."""
        return bool(self._partitions) and all(
            (peer := self._edge.peers.get(placement.primary)) is not None and peer.conn is not None
            for placement in self._partitions
        )

    def _shards_moved(self, cluster_map: ClusterMap) -> None:
        """New owners of shards: report the filters, register the cached topics, ask again what is pending."""
        edge = self._edge
        former, self._shards = self._shards, list(cluster_map.shards)
        changed = {
            number
            for number, shard in enumerate(cluster_map.shards)
            if number >= len(former) or former[number] != shard
        }
        moved_jurisdiction = self._active and cluster_map.delegations != self._delegations
        self._delegations = cluster_map.delegations
        self._active = True
        if not changed:
            return
        if moved_jurisdiction:
            edge.registrar.jurisdiction_changed(edge.now)
        # The first map too: an owner that began with this life in its map waits for it, even with nothing to say.
        self._unreported |= changed
        self._report_at = edge.now
        self.report()
        edge.registrar.placement_changed(changed, edge.now)
        edge.cache.placement_changed(changed, edge.now, jurisdiction=moved_jurisdiction)

    @property
    def waits(self) -> bool:
        """Whether an owner has not been told this edge's filters."""
        return bool(self._unreported)

    def report(self) -> None:
        """Tell owners this edge's filters, as far as they are due."""
        edge = self._edge
        if not self._unreported or edge.now < self._report_at:
            return
        reports = edge.registrar.reports()
        for number in sorted(self._unreported):
            shard = self._shards[number]
            pieces = (
                reports[number] if shard.owner else []
            )  # each in a message of its own: together they may fit no frame
            if pieces and all(edge.tell(shard.owner, ReportRoutes(number, shard.epoch, [piece])) for piece in pieces):
                self._unreported.discard(number)
        self._report_at = edge.now + REPORT_AGAIN_S if self._unreported else float("inf")

    def report_again(self, shard: int) -> None:
        """The router that was told does not own the shard at that epoch yet, or any more."""
        if shard < len(self._shards):
            self._unreported.add(shard)
            self._report_at = min(self._report_at, self._edge.now + REPORT_AGAIN_S)
