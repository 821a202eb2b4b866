"""Requests of edges: to one partition by its epoch, retained reads of all partitions, acknowledgements of entries.

A request contains the partition_epoch that its edge knows. A later one makes it wait for this node's map. Another
epoch, or an edge that the map lacks, gives the reply Moved, and the edge retries. A partition that does not serve yet
keeps the request.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from mqtt.topics import has_wildcard
from storage.hosting.hosted_partition import HostedPartition
from storage.hosting.iteration import Iteration
from storage.hosting.partitions import Partitions
from storage.hosting.pending_until_map import Early, PendingUntilMap
from storage.hosting.pending_until_serving import PartitionRequest, WaitingAck, WaitingRequest, WaitingScan
from storage.hosting.retained_scans import RetainedScan, RetainedScans
from storage.messages.fast_path_acks import AckHandler, FastPathAcks
from wire.messages.batches import PushAck
from wire.messages.disconnected_sessions import ListDisconnected, RevokeDisconnected
from wire.messages.hello import PeerKey
from wire.messages.nodes import Moved
from wire.messages.retained import ReadRetained, ReadRetainedAll
from wire.messages.sessions import (
    CloseSession,
    ListFilters,
    OpenSession,
    RecordInbound,
    ReleaseInbound,
    SubscribeSession,
    UnsubscribeSession,
)
from wire.node.lease_holder import LeaseHolder

__all__ = ["Requests"]

NO_OWNER_EPOCH = -1  # an owner_epoch that no connection has


class Requests:
    """The requests that arrive at one node.

    Args:
        iteration: Time, counts, replies that need no commit.
        lease: The map.
        partitions: The partitions with this node as primary.
        early: Keeps requests for a later map.
        scans: Runs retained reads in slices.
    """

    def __init__(
        self,
        iteration: Iteration,
        lease: LeaseHolder,
        partitions: Partitions,
        early: PendingUntilMap,
        scans: RetainedScans,
    ) -> None:
        self._iteration = iteration
        self._lease = lease
        self._partitions = partitions
        self._early = early
        self._scans = scans
        self._handler = AckHandler(self._get_fast_path_acks, self._other_ack)
        self._peer: PeerKey | None = None  # sender of the current acknowledgements

    # --- of one partition

    def ask(self, peer: PeerKey, request: PartitionRequest) -> None:
        """Process a request, keep it, or reply that its partition is elsewhere."""
        hosted = self._partitions.reach(request.partition)
        cluster_map, now = self._lease.map, self._iteration.now
        placements = cluster_map.partitions
        known = placements[request.partition].epoch if request.partition < len(placements) else 0
        if request.partition_epoch > known:  # the edge's map is ahead of this one
            if not self._early.keep(request.partition, WaitingRequest(now, peer, request)):
                self._iteration.count("requests_dropped_early")
            return
        # An incarnation that this node's map lacks must retry: its CONNECT would be treated as a dead edge's.
        is_known = cluster_map.is_alive(peer.node, peer.incarnation)
        if hosted is None or request.partition_epoch != hosted.partition.epoch or not is_known:
            self._moved(peer, request)
        elif hosted.takes:
            self.carry_out(hosted, request, peer)
        else:
            serves, kept = hosted.serving, hosted.wait_to_serve(WaitingRequest(now, peer, request))
            if kept and not serves and isinstance(request, CloseSession):
                hosted.owners.will_close(request)

    def refuse_overdue(self, overdue: Iterable[Early]) -> None:
        """Reply Moved to pending requests that waited too long for this node's map: their edges retry."""
        for waiting in overdue:
            if isinstance(waiting, WaitingRequest):
                self._moved(waiting.peer, waiting.request)

    def _moved(self, peer: PeerKey, request: PartitionRequest) -> None:
        hosted = self._partitions.hosted.get(request.partition)
        epoch = hosted.partition.epoch if hosted is not None else 0
        self._iteration.send_control(peer.node, Moved(request.request, "partition", request.partition, epoch))

    def carry_out(self, hosted: HostedPartition, request: PartitionRequest, peer: PeerKey) -> None:
        """Dispatch a request to its handler. The partition serves."""
        assert hosted.serving, "a request reaches a partition that does not serve"
        edge = peer.node
        if isinstance(request, OpenSession):
            hosted.owners.open(request, edge, peer.incarnation)
            return
        if not hosted.is_authorized(request, peer):
            self._iteration.count("requests_of_others")
            request = replace(request, owner_epoch=NO_OWNER_EPOCH)  # answered like one of a closed connection
        if isinstance(request, CloseSession):
            hosted.owners.close(request, edge)
        elif isinstance(request, SubscribeSession):
            hosted.subscriptions.subscribe(request, edge)
        elif isinstance(request, UnsubscribeSession):
            hosted.subscriptions.unsubscribe(request, edge)
        elif isinstance(request, RecordInbound):
            hosted.inbound.record(request, edge)
        elif isinstance(request, ReleaseInbound):
            hosted.inbound.release(request, edge)
        elif isinstance(request, ReadRetained):
            if has_wildcard(request.topic_filter):
                self.scan(hosted, request, edge)
            else:
                hosted.retained.read(request, edge)
        elif isinstance(request, ListFilters):
            hosted.held_filters.list_some(request, edge)
        elif isinstance(request, ListDisconnected):
            hosted.disconnected.list_some(request, edge)
        elif isinstance(request, RevokeDisconnected):
            hosted.disconnected.revoke(request, edge)
        else:
            hosted.retained.deliver(request, edge)

    def scan(self, hosted: HostedPartition, request: ReadRetained, edge: str) -> None:
        """Begin a retained read in one partition."""
        self._scans.add(RetainedScan(edge, request, [(hosted.partition.number, hosted)]), self._iteration.now)

    # --- of all partitions

    def read_all(self, peer: PeerKey, request: ReadRetainedAll) -> None:
        """Read every partition here; one that does not serve yet follows when it does."""
        serving = []
        self._partitions.arrive_all()
        for number, hosted in self._partitions.hosted.items():
            if hosted.serving:
                serving.append((number, hosted))
                continue
            filters = (request.topic_filter, "", request.limit, request.waits_s)
            one = ReadRetained(request.request, number, hosted.partition.epoch, *filters)
            hosted.wait_to_serve(WaitingScan(self._iteration.now, peer, one))
        if serving:
            self._scans.add(RetainedScan(peer.node, request, serving), self._iteration.now)

    # --- acknowledgements

    def push_acks(self, peer: PeerKey, payload: bytes) -> None:
        """Process the acknowledgements of one PUSH_ACK frame.

        Raises:
            Unreadable: The frame is invalid; no acknowledgement was processed.
        """
        self._peer = peer
        self._handler.take(payload, peer.node, peer.incarnation)

    def _get_fast_path_acks(self, number: int) -> FastPathAcks | None:
        hosted = self._partitions.reach(number)
        if hosted is None or not hosted.takes or hosted.partition.ledger is not None:
            return None
        return hosted.delivery.fast_path_acks

    def _other_ack(self, ack: PushAck) -> None:
        peer = self._peer
        assert peer is not None
        hosted = self._partitions.reach(ack.session >> 48)
        if hosted is None:
            self._iteration.count("not_primary")
        elif hosted.takes:
            self.push_acked(hosted, peer, ack)
        else:
            hosted.wait_to_serve(WaitingAck(self._iteration.now, peer, ack))

    def push_acked(self, hosted: HostedPartition, peer: PeerKey, ack: PushAck) -> None:
        """Process an acknowledgement if it is from the edge that holds the session's connection."""
        if hosted.owns_session(ack.session, peer):
            hosted.delivery.outbound.acknowledged(ack)
        else:
            self._iteration.count("acks_of_others")
