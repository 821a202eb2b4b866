"""Effects of a new map at this edge: dead peers are retired, partitions get primaries, shards get owners.

Applied before the epoch is acknowledged. Only reports of this edge's filters are sent later, in slices: a shard's new
owner sends no responses before it has them.
"""

from collections.abc import Iterator

from conf.addresses import host_of
from edge.clients.clients import Clients
from edge.cluster.partition_requests import PartitionRequests
from edge.cluster.peer_table import PeerTable
from edge.node.node import NS, EdgeNode
from edge.node.ports import Primaries
from edge.node.slices import Slices
from edge.subscriptions.topic_routes import TopicRoutes
from wire.messages.cluster_map import ClusterMap, Delegation, PartitionEntry, ShardEntry
from wire.messages.routes import ReportRoutes
from wire.node.route_registrar import PLACED_AT_ONCE, ROUTES_PER_STEP, RouteRegistrar

__all__ = ["EdgeMapFollower"]

REPORT_RETRY_S = 0.1
STEPS_MAX = 40  # of an iteration, for reports and for filters that moved to other shards: about a millisecond
STEPS_OF_PLACES = PLACED_AT_ONCE // ROUTES_PER_STEP


class EdgeMapFollower:
    """Applies map changes to one edge's tables.

    Args:
        node: This edge.
        loop: Partitions and their primaries.
        peers: Links to other nodes.
        clients: The connections of clients.
        requests: Unanswered requests to partitions, sent again to a new primary.
        routes: Routes, and the cached responses of shard owners.
        registrar: This edge's own routes at these owners.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: Primaries,
        peers: PeerTable,
        clients: Clients,
        requests: PartitionRequests,
        routes: TopicRoutes,
        registrar: RouteRegistrar,
    ) -> None:
        self._node = node
        self._loop = loop
        self._peers = peers
        self._clients = clients
        self._requests = requests
        self._routes = routes
        self._registrar = registrar
        self._partitions: list[PartitionEntry] = []
        self._shards: list[ShardEntry] = []
        self._delegations: tuple[Delegation, ...] = ()
        self._active = False
        self._unreported: set[int] = set()  # shards that need a report of this edge's filters
        self._reporting_shards: set[int] = set()  # shards with a report in progress
        self._report_at = float("inf")
        self._work = Slices(STEPS_MAX)

    def moved(self, cluster_map: ClusterMap) -> None:
        """Apply a new map epoch."""
        gone = self._peers.retire_dead(cluster_map)
        self._peers.know(cluster_map)
        hosts = (host_of(entry.address) for entry in cluster_map.nodes.values() if entry.alive)
        self._peers.pending.known.fix("map", hosts)
        self._partitions_moved(cluster_map)
        if self._node.lease.active:
            self._shards_moved(cluster_map)
        if gone:
            self._routes.peers_changed()

    def _partitions_moved(self, cluster_map: ClusterMap) -> None:
        former, self._partitions = self._partitions, list(cluster_map.partitions)
        self._loop.set_partitions(len(self._partitions))
        self._loop.set_lease_length(int(cluster_map.lease_s * NS))
        for number, placement in enumerate(cluster_map.partitions):
            if number < len(former) and former[number] == placement:
                continue
            self._bind(number, placement)
            self._requests.placement_changed(number, self._node.now)

    def _bind(self, number: int, placement: PartitionEntry) -> None:
        peer = self._peers.get(placement.primary) if placement.primary else None
        self._loop.set_epoch(number, placement.epoch)
        self._loop.set_primary(number, peer)
        if peer is not None:
            self._loop.replay_partition(number, peer)
        for client in self._clients.at_partition(number):
            if client.session and not client.conn.closed:
                self._loop.set_primary_of(client.conn, peer)

    def storage_up(self, node: str) -> None:
        """Bind the partitions of a storage node with a new link."""
        for number, placement in enumerate(self._partitions):
            if placement.primary == node and self._loop.primaries[number] is not self._peers.get(node):
                self._bind(number, placement)
        self._requests.node_ready(node, self._node.now)

    def storage_linked(self) -> bool:
        """True if the primaries of all partitions are linked."""
        return bool(self._partitions) and all(
            (peer := self._peers.get(placement.primary)) is not None and peer.conn is not None
            for placement in self._partitions
        )

    def _shards_moved(self, cluster_map: ClusterMap) -> None:
        """Report filters to new shard owners, register the cached topics, and send pending requests again."""
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
        # The first map too: an owner that has this incarnation in its first map waits for a report, even an empty one.
        self._mark_unreported(changed | self._reporting_shards if moved_jurisdiction else changed)
        self._report_at = self._node.now
        self.report()
        if moved_jurisdiction:
            self._work.add(self._registrar.jurisdiction_changed())
        self._registrar.placement_changed(changed, self._node.now)
        self._routes.cache.placement_changed(changed, self._node.now, jurisdiction=moved_jurisdiction)

    @property
    def waits(self) -> bool:
        """Whether a shard owner still needs a report."""
        return bool(self._unreported)

    @property
    def busy(self) -> bool:
        """Whether the next iteration must continue work."""
        return bool(len(self._work))

    def next_turn(self) -> None:
        """Continue pending work; called once an iteration."""
        self._work.next_turn()

    def report(self) -> None:
        """Start a report of this edge's filters to due and linked shard owners; one report at a time."""
        if not self._unreported or self._reporting_shards or self._node.now < self._report_at:
            return
        self._report_at = self._node.now + REPORT_RETRY_S
        self._reporting_shards = {
            number for number in self._unreported if self._node.peer_of(self._shards[number].owner)
        }
        self._unreported -= self._reporting_shards
        if self._reporting_shards:
            self._work.add(self._reporting(self._reporting_shards))

    def _reporting(self, told: set[int]) -> Iterator[int]:
        for piece in self._registrar.report(told):
            if piece is None:
                yield STEPS_OF_PLACES
                continue
            number, report = piece
            shard = self._shards[number]
            # Each in its own message: together they may exceed a frame.
            if not self._node.tell(shard.owner, ReportRoutes(number, shard.epoch, [report])):
                self._mark_unreported({number})
                self._report_at = self._node.now + REPORT_RETRY_S
            elif report.last:
                told.discard(number)
            yield 1 + len(report.routes) // ROUTES_PER_STEP
        assert not told, "a report ends with the last piece of each shard"
        self.report()

    def _mark_unreported(self, shards: set[int]) -> None:
        """Mark shards for a new report: theirs was incomplete, or their owner changed."""
        self._reporting_shards -= shards
        self._unreported |= shards

    def report_again(self, shard: int) -> None:
        """Report a shard again: the router does not own it at that epoch yet, or no longer."""
        if shard < len(self._shards):
            self._mark_unreported({shard})
            self._report_at = min(self._report_at, self._node.now + REPORT_RETRY_S)
