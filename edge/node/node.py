"""The ground that all parts of one edge share: limits, time, map, lease, counts, and messages to other nodes.

Parts take an ``EdgeNode`` and their real collaborators, never the core that joins them.
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

    Invariants: ``now`` never falls within a turn; messages to one node keep their order; nothing here calls back, but
    for ``map_moved``.

    Args:
        identity: This edge.
        entry: This edge as it registers.
        limits: Bounds and announcements.
        loop: Its clock, and the frames of links.
        counts: Where events are counted.
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
        self.ordered: Callable[[str, OrderNode], None] = self._not_ordered  # the service's: what a core cannot do
        self.audit: Callable[[AuditRecord], None] = lambda _: None  # the service puts the node's audit here
        self.journal = Journal()
        self.peer_of = peer_of
        self._loop = loop
        entry = msgspec.structs.replace(entry, fence_close_s=limits.fence_close_s)  # others wait for so long (P9)
        self.lease = LeaseHolder(
            entry,
            self.tell,
            map_moved,
            ended_incarnation=ended_incarnation,
            count=self.count,
            cluster_id=identity.cluster_id,
        )

    def bound_by(self, limits: EdgeLimits) -> None:
        """Go by these limits, at first or from now on; parts that made something of them are called by the core."""
        self.limits, self.packet_limits = limits, limits.of_packets()

    def _not_ordered(self, router: str, order: OrderNode) -> None:
        self.tell(router, NodeOrdered(order.request, error="this node carries out no orders"))

    @property
    def now(self) -> float:
        """Time of the current turn, s on CLOCK_BOOTTIME."""
        return self._loop.now_ns / NS

    @property
    def map(self) -> ClusterMap:
        """The map as this node has it."""
        return self.lease.map

    def has_lease(self) -> bool:
        """Return True while this edge may decide."""
        return self.lease.has_lease(self.now)

    def may_admit(self) -> bool:
        """Return True while this edge may let clients in: it decides, by a policy that is not older than itself."""
        return self.lease.knows_policy and self.lease.has_lease(self.now)

    def primary_peer(self, partition: int) -> LoopPeer | None:
        """Return the peer of a partition's primary, None while there is none or no link to it was ever made."""
        placements = self.map.partitions
        return self.peer_of(placements[partition].primary) if partition < len(placements) else None

    def tell(self, node: str, message: Control) -> bool:
        """Send a control message; False when there is no link or no room."""
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
        """Send control messages to a node in as few frames as may be; return how many there was room for."""
        return self._send_joined(node, FrameKind.CONTROLS, [encode_control(message) for message in messages])

    def ask_connects(self, node: str, records: list[ConnectRequest]) -> int:
        """Send what connections ask of a storage node likewise."""
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
        """Have ``turn_end`` called at the end of this turn: something changed that it looks at."""
        self._loop.turn_end_ns = 0

    def wake_lightly(self) -> None:
        """Likewise, for what comes in crowds alone: topics were missed or answered, plain connections came or went."""
        if self._loop.turn_end_ns:
            self._loop.turn_end_ns = 1
