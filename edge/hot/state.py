"""The records of the hot loop: connections, routes, messages, peers. Data only: the sibling files act.

Each class is a C struct when compiled (``state.pxd`` has the C types) and an ordinary class otherwise. Attributes
without a leading underscore are for the edge core to read; it changes them through ``Hot`` only, unless said otherwise.
Decision: docs/adr/0008-trio-with-a-compiled-loop.md.
"""

from collections import deque
from collections.abc import Callable

from wire.batches import NO_EXPIRY, OriginKind
from wire.link import LinkCore

__all__ = ["CLIENT", "LINK", "LISTENER", "Conn", "Group", "Inbound", "Message", "Peer", "Remote", "Route", "Sub"]

CLIENT, LINK, LISTENER = 0, 1, 2  # Conn.kind


class Conn:
    """One socket: a client or a link. Never made by the core: ``Hot.attach``.

    Attributes:
        fd: Its descriptor, -1 in simulation and after the close.
        number: Counts connections of this loop from 1, never reused: compare it after a wait (``closed`` does, too).
        owner: The core's own record; the core may set it at any time.
        version: 3, 4 or 5 once a session is open, 0 before.
        session: Number of the durable session, 0 for an ephemeral one; with owner_epoch.
        closed: No packet is read and nothing is written any more.
    """


class Sub:
    """One local ephemeral subscriber of a Route: one connection's matching subscriptions, merged [MQTT-3.3.4-2]."""

    def __init__(
        self,
        conn: Conn,
        qos: int,
        no_local: bool = False,
        retain_as_published: bool = False,
        identifiers: bytes = b"",
    ) -> None:
        """Make a subscriber.

        Args:
            conn: Where to; skipped once closed.
            qos: Highest granted QoS of the matching subscriptions.
            no_local: Not to its own publisher [MQTT-3.8.3-3].
            retain_as_published: Keep the RETAIN flag [MQTT-3.3.1-13].
            identifiers: Encoded Subscription Identifier properties (0x0B, varint, ...), all of them [MQTT-3.3.4-4].
        """


class Remote:
    """One destination elsewhere that ``Handler.pick`` chose: an edge, or a storage partition."""

    def __init__(self, peer: "Peer | None", partition: int, share: bytes) -> None:
        """``peer`` for an edge (partition -1), else None and the partition; share: b"share name/topic filter"."""


class Group:
    """A shared group as a Route names it: opaque here, ``Handler.pick`` chooses. The core subclasses it."""


class Route:
    """Where messages of one topic go. Immutable; when subscriptions change the core drops it and installs another.

    A topic that may not be published to at all has a Route with a ``reason_code``.
    """

    def __init__(
        self,
        topic: bytes,
        subs: "tuple[Sub, ...]" = (),
        edges: "tuple[Peer, ...]" = (),
        partitions: tuple[int, ...] = (),
        groups: tuple[Group, ...] = (),
        reason_code: int = 0,
    ) -> None:
        """Make a route.

        Args:
            topic: The topic name, valid UTF-8.
            subs: Local ephemeral subscribers, one per connection.
            edges: Other edges with ephemeral subscribers; never this one.
            partitions: Partitions with durable subscribers; their primaries are looked up when a message is sent.
            groups: Shared groups, one pick each per message.
            reason_code: 0x80 or more refuses messages: QoS 0 dropped, v5 acknowledged with it, v3 acknowledged.
        """


class Inbound:
    """A PUBLISH that the core publishes: handed to it by ``Handler.inbound``, or made by it (will, $SYS, HTTP)."""

    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: bytes = b"",
        version: int = 5,
        expiry_s: int = NO_EXPIRY,
        packet_identifier: int = 0,
        dup: bool = False,
        conn: Conn | None = None,
    ) -> None:
        """properties: MQTT 5 block without length, Topic Alias and Message Expiry Interval; b"" of a v3 client."""


class Message:
    """An accepted QoS 1/2 message while destinations have not acknowledged it.

    Attributes:
        tag: This edge's counter for it, from 1.
        waiting: Destinations still to acknowledge.
        reason_code: Worst of the answers so far; 0x10 when nobody subscribed.
    """


class Peer:
    """Another node: its link, this round's batch for it, and what it has to acknowledge. Made by ``Hot.add_peer``."""

    def __init__(self, node: int, tier: str, incarnation: int, link: LinkCore) -> None:
        """node: its number in the ClusterMap; tier: "edge", "storage" or "router"."""


_UNUSED = (deque, Callable, OriginKind)
