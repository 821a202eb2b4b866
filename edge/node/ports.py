"""Ports of the loop: its methods by the part that uses them. ``BrokerLoop`` implements all of them.

A part declares the narrowest port that it uses; a test passes a small fake. ``edge/loop/broker_loop.py`` describes each
method.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from edge.loop.options import SessionOptions
from edge.loop.shared_rate_limits import SharedRateLimit
from edge.loop.state import InboundPublish, LoopConnection, LoopPeer, PendingAck, Route, Sub

__all__ = [
    "ClientEnds",
    "ClientIO",
    "ConnectionEnd",
    "CorePublisher",
    "DirectDelivery",
    "HeldBytes",
    "LeaseGate",
    "LinkIO",
    "LoopCounters",
    "NodeIO",
    "Primaries",
    "RetainedCopySource",
    "RightsIO",
    "RouteTable",
    "SessionIO",
    "Sessions",
]


class NodeIO(Protocol):
    """The clock, and control messages to other nodes."""

    turn_end_ns: int

    @property
    def now_ns(self) -> int:
        """Time of the current iteration."""

    def control(self, peer: LoopPeer, kind: int, payload: bytes) -> None:
        """Send one numbered frame."""


class LinkIO(Protocol):
    """Links to other nodes."""

    def add_peer(self, node: int, tier: str, incarnation: int) -> LoopPeer:
        """Create a peer."""

    def unbind_link(self, peer: LoopPeer) -> None:
        """Close the older connection of a peer."""

    def bind_link(self, conn: LoopConnection, peer: LoopPeer, peer_taken: int) -> None:
        """Bind a connection to its peer."""

    def retire_peer(self, peer: LoopPeer) -> None:
        """End an incarnation of a node."""

    def write(self, conn: LoopConnection, data: bytes, needs_lease: bool = False) -> None:
        """Append to the output."""

    def close(self, conn: LoopConnection, last: bytes = b"", linger: bool = True) -> None:
        """Close a connection."""


class ClientIO(Protocol):
    """Responses to clients."""

    def write(self, conn: LoopConnection, data: bytes, needs_lease: bool = False) -> None:
        """Append whole packets to the output."""

    def resume(self, conn: LoopConnection) -> None:
        """End the pause that a Handler call started."""

    def charge(self, conn: LoopConnection, filters: int, gap_ns: int) -> None:
        """Charge filters to the rates of a client and its address; beyond one second's worth reading pauses."""


class Sessions(Protocol):
    """Connections of durable sessions and their partitions' primaries."""

    def set_primary_of(self, conn: LoopConnection, peer: LoopPeer | None) -> None:
        """Set the peer that gets a session's PUSH_ACKs."""


class SessionIO(ClientIO, Sessions, Protocol):
    """Opens sessions."""

    def open_session(self, conn: LoopConnection, options: SessionOptions) -> None:
        """Apply the bounds of CONNECT and CONNACK."""

    def share(self, conn: LoopConnection, purse: SharedRateLimit | None) -> None:
        """Charge a client to the shared rate limit of its address."""


class ClientEnds(Protocol):
    """Closes connections of clients."""

    def close(self, conn: LoopConnection, last: bytes = b"", linger: bool = True) -> None:
        """Write the last bytes, stop reading, flush, half-close."""

    def leave(self, conn: LoopConnection) -> None:
        """Flush, and close."""

    def cut(self, conn: LoopConnection, last: bytes = b"") -> None:
        """Close, and free all memory of the connection."""


class RightsIO(Protocol):
    """Cached authorization verdicts of the loop."""

    authorizing: bool

    @property
    def rights_epoch(self) -> int:
        """Epoch of the rules for cached verdicts."""

    def limit(self, conn: LoopConnection, publish_rate_max: float, byte_rate_max: float, metered: bool) -> None:
        """Set the rate limits of reading a client."""

    def share(self, conn: LoopConnection, purse: SharedRateLimit | None) -> None:
        """Charge a client to the shared rate limit of its address."""

    def forget_verdicts(self, conn: LoopConnection) -> None:
        """Remove the cached verdicts of a connection."""

    def join_class(self, conn: LoopConnection, number: int) -> None:
        """Set the bit on Routes of a connection's class, -1 for none."""

    def judge_pushes_to(self, conn: LoopConnection) -> None:
        """Authorize each PUSH to a connection before it is written."""

    def drop_routes(self) -> None:
        """Remove all cached Routes."""

    def void_verdicts(self, rights_epoch: int) -> None:
        """Remove all verdicts of earlier rules."""


class CorePublisher(Protocol):
    """Messages that the core publishes."""

    def publish(
        self,
        route: Route,
        publish: InboundPublish,
        retained_partition: int = -1,
        origin_kind: int = 0,
        origin_a: int = 0,
        origin_b: int = 0,
        on_done: Callable[[int], object] | None = None,
        written: tuple[int, int] | None = None,
        owner: bytes = b"",
    ) -> int:
        """Send a message to every destination of a route; return its tag."""

    def acknowledge(self, publish: InboundPublish, reason_code: int) -> None:
        """Acknowledge a PUBLISH without destinations, or a delayed acknowledgement."""

    def bears(self, publish: InboundPublish, origin_kind: int, origin_a: int, origin_b: int) -> None:
        """Set the origin of a message with a pending acknowledgement."""

    def released(self, conn: LoopConnection, packet_identifier: int, reason_code: int) -> None:
        """Write PUBCOMP."""

    def resume(self, conn: LoopConnection) -> None:
        """End the pause that a Handler call started."""

    def begin_pipeline(self, conn: LoopConnection) -> None:
        """Parse only retained messages of QoS 1 and 2, and packets without an order to them."""

    def end_pipeline(self, conn: LoopConnection) -> None:
        """Parse all packets again."""

    def route(self, topic: bytes) -> Route | None:
        """Return the cached Route."""

    def install_route(self, topic: bytes, route: Route) -> None:
        """Cache the Route of a topic."""

    def send_pick(self, copy: PendingAck, chosen: object) -> None:
        """Continue with a shared subscription's refused copy."""

    def knows_pick(self, share: bytes, session: int, counter: int) -> bool:
        """Return whether a member here got the message of this origin."""

    def read_given_up(self, record: bytes, since_ns: int) -> InboundPublish | None:
        """Return the message of a copy that waited for a member, None if it expired meanwhile."""


class RouteTable(Protocol):
    """The Route cache of the loop."""

    def route(self, topic: bytes) -> Route | None:
        """Return the cached Route if it is current."""

    def install_route(self, topic: bytes, route: Route) -> None:
        """Cache the Route of a topic."""

    def clear_used(self, topic: bytes) -> bool:
        """Clear the used mark of a topic's Route; return whether it was set."""

    def keep_route(self, route: Route) -> None:
        """Confirm that an older Route is current."""

    def replace_route(self, route: Route) -> None:
        """Replace the Route of a topic."""

    def drop_route(self, topic: bytes) -> None:
        """Remove a topic's Route."""

    def drop_oldest_local(self, count: int) -> None:
        """Remove the cached subscribers of the topics forwarded here first."""

    def refresh_routes(self) -> None:
        """Check every Route before its next use."""

    def refresh_route(self, topic: bytes) -> None:
        """Check one topic's Route before its next use."""


class Primaries(Sessions, Protocol):
    """Partitions and their primaries."""

    @property
    def primaries(self) -> Sequence[LoopPeer | None]:
        """The primary of each partition."""

    def set_partitions(self, count: int) -> None:
        """Set the number of partitions."""

    def set_lease_length(self, lease_ns: int) -> None:
        """Set the length of a lease of the map."""

    def set_epoch(self, partition: int, partition_epoch: int) -> None:
        """Set the epoch of a partition."""

    def set_primary(self, partition: int, peer: LoopPeer | None) -> None:
        """Set a partition's primary."""

    def replay_partition(self, partition: int, peer: LoopPeer) -> int:
        """Send again the messages that the former primary did not acknowledge."""


class DirectDelivery(Protocol):
    """Delivery of one message to one client without a route."""

    def deliver(self, conn: LoopConnection, publish: InboundPublish, qos: int, identifiers: bytes = b"") -> bool:
        """Send one message to one ephemeral session."""

    def charge(self, conn: LoopConnection, filters: int, gap_ns: int) -> None:
        """Charge requests of a client to its rate; beyond one second's worth reading pauses."""

    def can_take(self, conn: LoopConnection, size: int, qos: int) -> bool:
        """Return whether a message would be sent or queued without dropping any."""

    def report_room(self, conn: LoopConnection) -> None:
        """Call ``Handler.has_room`` after a connection has sent more of its output."""


class RetainedCopySource(Protocol):
    """Copies that the core held for a subscriber."""

    def can_take(self, conn: LoopConnection, size: int, qos: int, live: bool = False) -> bool:
        """Return whether a message is sent or queued, and not dropped."""

    def report_room(self, conn: LoopConnection) -> None:
        """Call ``Handler.has_room`` after a connection has sent more of its output."""

    def deliver_held(self, sub: Sub, record: bytes, held_s: int) -> bool:
        """Send one to its subscriber."""


class HeldBytes(Protocol):
    """Memory of the loop for clients."""

    @property
    def held_bytes(self) -> int:
        """Bytes held for all clients."""

    def bound_held_bytes(self, bytes_max: int) -> None:
        """Set the bound above which the Handler is called."""

    def largest_holders(self, count: int) -> list[LoopConnection]:
        """Return the clients with the most held bytes, the largest first."""


class LeaseGate(Protocol):
    """The lease, and connections that wait for one."""

    def set_lease(self, until_ns: int) -> None:
        """Set the end of the lease."""

    def set_fence(self, at_ns: int) -> None:
        """Set when clients must not be served any more; 0: never."""

    def resume(self, conn: LoopConnection) -> None:
        """End the pause that a Handler call started."""


class ConnectionEnd(Protocol):
    """Pending output of an edge that stops."""

    def stop_reading(self) -> None:
        """Stop reading from clients."""

    def owes(self, conn: LoopConnection) -> bool:
        """Return whether a client has pending output."""

    def owes_partitions(self) -> bool:
        """Return whether messages to partitions are unacknowledged."""

    def lingers(self) -> bool:
        """Return whether last bytes or closed sockets are pending."""


class LoopCounters(Protocol):
    """The loop's counters, and publishing of their topics."""

    def counters(self) -> dict[str, int]:
        """Return all counters by name."""

    def publish(self, route: Route, publish: InboundPublish) -> int:
        """Send a message to every destination of a route."""
