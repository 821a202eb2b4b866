"""Shared state of one edge's parts: limits, time, map, lease, counts, and messages to other nodes.

Parts get an ``EdgeNode`` and their real collaborators, never the core that connects them.
"""

from collections.abc import Callable

import msgspec

from access.operators.audit_chain import AuditRecord
from edge.loop.state import LoopPeer
from edge.node.limits import EdgeLimits
from edge.node.ports import NodeIO
from wire.links.link import LinkFull
from wire.messages.cluster_map import ClusterMap, NodeEntry
from wire.messages.connects import ConnectRequest, encode_record
from wire.messages.control import CONTROLS_BYTES, CONTROLS_MAX, Control, encode_control, join_controls
from wire.messages.frames import FRAME_BYTES_MAX, FrameKind
from wire.messages.hello import NodeIdentity
from wire.messages.orders import NodeOrdered, OrderNode
from wire.node.lease_holder import LeaseHolder
from wire.queries.journal import Journal

__all__ = ["NS", "EdgeCounters", "EdgeNode"]

NS = 1_000_000_000


class EdgeCounters(dict[str, int]):
    """Events of one edge by name: connects by reason code, disconnects by reason, refusals."""

    def add(self, what: str, amount: int = 1) -> None:
        """Count an event."""
        self[what] = self.get(what, 0) + amount


class EdgeNode:
    """One edge as its parts see it.

    Invariants: ``now`` never decreases within an iteration; messages to one node keep their order; the only callback is
    ``map_moved``.

    Args:
        identity: This edge.
        entry: This edge as it registers.
        limits: Bounds and announcements.
        loop: Its clock, and the frames of links.
        counts: Counters of events.
        peer_of: The peer of a node, connected or not; None if no link to it was ever made.
        map_moved: Called with each new map, before its epoch is acknowledged.
        ended_incarnation: A former incarnation of this node that has surely ended; 0 for none.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        entry: NodeEntry,
        limits: EdgeLimits,
        loop: NodeIO,
        counts: EdgeCounters,
        peer_of: Callable[[str], LoopPeer | None],
        map_moved: Callable[[ClusterMap], None],
        ended_incarnation: int = 0,
    ) -> None:
        self.name = identity.node
        self.incarnation = identity.incarnation
        self.bound_by(limits)
        self.counts = counts
        self.count = counts.add  # counts an event of this edge
        self.ordered: Callable[[str, OrderNode], None] = self._not_ordered  # set by the service
        self.audit: Callable[[AuditRecord], None] = lambda _: None  # the service sets the node's audit
        self.journal = Journal()
        self.peer_of = peer_of
        self._loop = loop
        entry = msgspec.structs.replace(entry, fence_close_s=limits.fence_close_s)  # others wait this time (P9)
        self.lease = LeaseHolder(
            entry,
            self.tell,
            map_moved,
            ended_incarnation=ended_incarnation,
            count=self.count,
            cluster_id=identity.cluster_id,
        )

    def bound_by(self, limits: EdgeLimits) -> None:
        """Set the limits; the core then updates parts with derived state."""
        self.limits, self.packet_limits = limits, limits.of_packets()

    def _not_ordered(self, router: str, order: OrderNode) -> None:
        self.tell(router, NodeOrdered(order.request, error="this node carries out no orders"))

    @property
    def now(self) -> float:
        """Time of the current iteration, s on CLOCK_BOOTTIME."""
        return self._loop.now_ns / NS

    @property
    def map(self) -> ClusterMap:
        """The map of this node."""
        return self.lease.map

    def has_lease(self) -> bool:
        """Return True while this edge may decide."""
        return self.lease.has_lease(self.now)

    def may_admit(self) -> bool:
        """Return True while this edge may admit clients: it has a lease, and a policy not older than its
        incarnation.
        """
        return self.lease.knows_policy and self.lease.has_lease(self.now)

    def primary_peer(self, partition: int) -> LoopPeer | None:
        """Return the peer of a partition's primary, None while there is none or no link to it was ever made."""
        placements = self.map.partitions
        return self.peer_of(placements[partition].primary) if partition < len(placements) else None

    def tell(self, node: str, message: Control) -> bool:
        """Send a control message; False if there is no link or its queue is full."""
        peer = self.peer_of(node)
        if peer is None:
            return False
        return self._send(peer, FrameKind.CONTROL, encode_control(message))

    def _send(self, peer: LoopPeer, kind: int, payload: bytes) -> bool:
        if len(payload) > FRAME_BYTES_MAX:
            self.count("control_too_long")
            return False
        try:
            self._loop.control(peer, kind, payload)
        except LinkFull:
            self.count("control_no_room")
            return False
        return True

    def tell_all(self, node: str, messages: list[Control]) -> int:
        """Send control messages to a node in few frames; return the number accepted by the link."""
        return self._send_joined(node, FrameKind.CONTROLS, [encode_control(message) for message in messages])

    def send_connect_requests(self, node: str, records: list[ConnectRequest]) -> int:
        """Send requests of connections to a storage node likewise."""
        return self._send_joined(node, FrameKind.CONNECTS, [encode_record(record) for record in records])

    def _send_joined(self, node: str, kind: int, payloads: list[bytes]) -> int:
        peer = self.peer_of(node)
        told = 0
        if peer is None:
            return told
        while told < len(payloads):
            count, octets = 1, len(payloads[told])
            for payload in payloads[told + 1 : told + CONTROLS_MAX]:
                octets += len(payload)
                if octets > CONTROLS_BYTES:
                    break
                count += 1
            if count == 1 and kind == FrameKind.CONTROLS:
                sent = self._send(peer, FrameKind.CONTROL, payloads[told])
            else:
                sent = self._send(peer, kind, join_controls(payloads[told : told + count]))
            if not sent:
                return told
            told += count
        return told

    def wake(self) -> None:
        """Request a call of ``turn_end`` at the end of this iteration, because relevant state changed."""
        self._loop.turn_end_ns = 0

    def wake_lightly(self) -> None:
        """Likewise, for frequent events only: route cache misses and responses, plain connections and their ends."""
        if self._loop.turn_end_ns:
            self._loop.turn_end_ns = 1
