"""Ports of the hot loop: its methods by the part that needs them. ``Engine`` satisfies all of these as it is.

A part names the narrowest port that it uses; a test gives it a few lines that look like one.
``edge/loop/broker_loop.py`` describes each method.
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
        """Time of the current turn."""

    def control(self, peer: LoopPeer, kind: int, payload: bytes) -> None:
        """Send one numbered frame."""


class LinkIO(Protocol):
    """Links to other nodes."""

    def add_peer(self, node: int, tier: str, incarnation: int) -> LoopPeer:
        """Make a peer."""

    def unbind_link(self, peer: LoopPeer) -> None:
        """End the older connection of a peer."""

    def bind_link(self, conn: LoopConnection, peer: LoopPeer, peer_taken: int) -> None:
        """Join a connection to its peer."""

    def retire_peer(self, peer: LoopPeer) -> None:
        """End an incarnation of a node."""

    def write(self, conn: LoopConnection, data: bytes, needs_lease: bool = False) -> None:
        """Append to the output."""

    def close(self, conn: LoopConnection, last: bytes = b"", linger: bool = True) -> None:
        """End a connection."""


class ClientIO(Protocol):
    """Answers to clients."""

    def write(self, conn: LoopConnection, data: bytes, needs_lease: bool = False) -> None:
        """Append whole packets to the output."""

    def resume(self, conn: LoopConnection) -> None:
        """End the parking by a Handler call."""

    def charge(self, conn: LoopConnection, filters: int, gap_ns: int) -> None:
        """Let filters use up a client's rate and its address's: with more than a second's worth it is not read."""


class Sessions(Protocol):
    """Connections of durable sessions and their partitions' primaries."""

    def set_primary_of(self, conn: LoopConnection, peer: LoopPeer | None) -> None:
        """Name the peer that gets a session's PUSH_ACKs."""


class SessionIO(ClientIO, Sessions, Protocol):
    """Sessions begin."""

    def open_session(self, conn: LoopConnection, options: SessionOptions) -> None:
        """Put the bounds of CONNECT and CONNACK into force."""

    def share(self, conn: LoopConnection, purse: SharedRateLimit | None) -> None:
        """Have a client use up what its address may send in all."""


class ClientEnds(Protocol):
    """Connections of clients end."""

    def close(self, conn: LoopConnection, last: bytes = b"", linger: bool = True) -> None:
        """Write the last bytes, stop reading, flush, half-close."""

    def leave(self, conn: LoopConnection) -> None:
        """Flush, and close."""

    def cut(self, conn: LoopConnection, last: bytes = b"") -> None:
        """Close, and hold nothing more."""


class RightsIO(Protocol):
    """Decisions of rules that the loop keeps."""

    authorizing: bool

    @property
    def rights_epoch(self) -> int:
        """Number of the rules that kept decisions are of."""

    def limit(self, conn: LoopConnection, publish_rate_max: float, byte_rate_max: float, metered: bool) -> None:
        """Read a client no faster than this."""

    def share(self, conn: LoopConnection, purse: SharedRateLimit | None) -> None:
        """Have a client use up what its address may send in all."""

    def forget_verdicts(self, conn: LoopConnection) -> None:
        """Ask anew for each topic of a connection."""

    def join_class(self, conn: LoopConnection, number: int) -> None:
        """Name the bit on Routes of a connection's class, -1 for none."""

    def judge_pushes_to(self, conn: LoopConnection) -> None:
        """Have each PUSH to a connection judged before it is written."""

    def drop_routes(self) -> None:
        """Forget which subscribers topics have."""

    def void_verdicts(self, rights_epoch: int) -> None:
        """Take no decision that was made before."""


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
        """Answer a PUBLISH that is not sent anywhere, or whose answer waited."""

    def bears(self, publish: InboundPublish, origin_kind: int, origin_a: int, origin_b: int) -> None:
        """Note which origin a message went by whose answer is due."""

    def released(self, conn: LoopConnection, packet_identifier: int, reason_code: int) -> None:
        """Write PUBCOMP."""

    def resume(self, conn: LoopConnection) -> None:
        """End the parking by a Handler call."""

    def begin_pipeline(self, conn: LoopConnection) -> None:
        """Parse nothing but retained messages of QoS 1 and 2, and what has no order with them."""

    def end_pipeline(self, conn: LoopConnection) -> None:
        """Parse every packet again."""

    def route(self, topic: bytes) -> Route | None:
        """Return the cached Route."""

    def install_route(self, topic: bytes, route: Route) -> None:
        """Cache where a topic goes."""

    def send_pick(self, copy: PendingAck, chosen: object) -> None:
        """Go on with a shared group's copy that was refused."""

    def knows_pick(self, share: bytes, session: int, counter: int) -> bool:
        """Return whether a member here got the message of this origin."""

    def read_given_up(self, record: bytes, since_ns: int) -> InboundPublish | None:
        """Return the message of a copy that waited for a member, None if it expired meanwhile."""


class RouteTable(Protocol):
    """The Routes that the loop keeps."""

    def route(self, topic: bytes) -> Route | None:
        """Return the cached Route, right as of now."""

    def install_route(self, topic: bytes, route: Route) -> None:
        """Cache where a topic goes."""

    def clear_used(self, topic: bytes) -> bool:
        """Clear the used mark of a topic's Route; return whether it was set."""

    def keep_route(self, route: Route) -> None:
        """Say that an older Route is right."""

    def replace_route(self, route: Route) -> None:
        """Put a Route in the place of the topic's former one."""

    def drop_route(self, topic: bytes) -> None:
        """Forget a topic's Route."""

    def drop_oldest_local(self, count: int) -> None:
        """Forget the subscribers kept for the topics that were forwarded here first."""

    def refresh_routes(self) -> None:
        """Have every Route looked at before it is used again."""

    def refresh_route(self, topic: bytes) -> None:
        """Have one topic's Route looked at before it is used again."""


class Primaries(Sessions, Protocol):
    """Partitions and their primaries."""

    @property
    def primaries(self) -> Sequence[LoopPeer | None]:
        """The primary of each partition."""

    def set_partitions(self, count: int) -> None:
        """Take the number of partitions."""

    def set_lease_length(self, lease_ns: int) -> None:
        """Note how long a lease of the map lasts."""

    def set_epoch(self, partition: int, partition_epoch: int) -> None:
        """Note the epoch that a partition is at."""

    def set_primary(self, partition: int, peer: LoopPeer | None) -> None:
        """Name a partition's primary."""

    def replay_partition(self, partition: int, peer: LoopPeer) -> int:
        """Send again what the former primary did not acknowledge."""


class DirectDelivery(Protocol):
    """One message to one client, outside of any route."""

    def deliver(self, conn: LoopConnection, publish: InboundPublish, qos: int, identifiers: bytes = b"") -> bool:
        """Send one message to one ephemeral session."""

    def charge(self, conn: LoopConnection, filters: int, gap_ns: int) -> None:
        """Let what a client asks for use up its rate: with more than a second's worth it is not read."""

    def can_take(self, conn: LoopConnection, size: int, qos: int) -> bool:
        """Return whether a message that can wait is sent or queued, and none is dropped for it."""

    def report_room(self, conn: LoopConnection) -> None:
        """Call ``Handler.has_room`` when a connection has taken more of what it was sent."""


class RetainedCopySource(Protocol):
    """Copies that the core kept for a subscriber."""

    def can_take(self, conn: LoopConnection, size: int, qos: int, live: bool = False) -> bool:
        """Return whether a message is sent or queued, and not dropped."""

    def report_room(self, conn: LoopConnection) -> None:
        """Call ``Handler.has_room`` when a connection has taken more of what it was sent."""

    def deliver_held(self, sub: Sub, record: bytes, held_s: int) -> bool:
        """Send one to its subscriber."""


class HeldBytes(Protocol):
    """How much clients make the loop hold."""

    @property
    def held_bytes(self) -> int:
        """Bytes held for all clients."""

    def bound_held_bytes(self, bytes_max: int) -> None:
        """Set the bound above which the Handler is called."""

    def largest_holders(self, count: int) -> list[LoopConnection]:
        """Return the clients for which most is held, the largest first."""


class LeaseGate(Protocol):
    """The lease, and connections that wait for one."""

    def set_lease(self, until_ns: int) -> None:
        """Say when the lease runs out."""

    def set_fence(self, at_ns: int) -> None:
        """Say when clients may not be served any more; 0: never."""

    def resume(self, conn: LoopConnection) -> None:
        """End the parking by a Handler call."""


class ConnectionEnd(Protocol):
    """Debts of an edge that stops."""

    def stop_reading(self) -> None:
        """Read nothing more from clients."""

    def owes(self, conn: LoopConnection) -> bool:
        """Return whether a client is owed something."""

    def owes_partitions(self) -> bool:
        """Return whether messages to partitions are not acknowledged."""

    def lingers(self) -> bool:
        """Return whether last bytes or closed sockets wait."""


class LoopCounters(Protocol):
    """The loop's counters, and the topics that show them."""

    def counters(self) -> dict[str, int]:
        """Return all counters by name."""

    def publish(self, route: Route, publish: InboundPublish) -> int:
        """Send a message to every destination of a route."""
