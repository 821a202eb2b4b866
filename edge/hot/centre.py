"""``Hot``: the sans-IO centre of the loop, and everything the edge core may ask of it.

Takes bytes and the time, gives bytes. ``edge/hot/loop.py`` puts sockets around it; tests and the simulation call
``begin_round``, ``feed``, ``end_round`` and ``take_output`` themselves. Nothing here reads a clock or rolls dice.
Decision: docs/adr/0008-trio-with-a-compiled-loop.md.
"""

from collections.abc import Callable

from edge.hot.handler import Handler, LedgerSink
from edge.hot.options import ConnOptions, HotLimits, SessionOptions
from edge.hot.state import Conn, Inbound, Message, Peer, Route
from wire.link import LinkCore

__all__ = ["Hot"]


class Hot:
    """All connections, routes and peers of one edge process.

    Attributes:
        now_ns: Time of the current round, CLOCK_BOOTTIME; what ``set_lease`` is compared with.
        authorizing: Ask ``Handler.authorize`` on a connection's first use of a topic; off by default.
        ledger: LedgerSink or None.
    """

    now_ns: int
    authorizing: bool
    ledger: LedgerSink | None

    def __init__(self, handler: Handler, incarnation: int, limits: HotLimits) -> None: ...

    # -- rounds (called by edge/hot/loop.py, or by a test in its place)

    def begin_round(self, now_ns: int) -> None:
        """Set the time, and parse on where resumed or released connections stopped."""

    def feed(self, conn: Conn, data: bytes) -> None:
        """Take bytes that arrived; while ``conn.parked`` or after a close nothing must be fed."""

    def end_of_file(self, conn: Conn) -> None:
        """The peer closed or reset its direction: the connection ends like by ``close``."""

    def end_round(self, now_ns: int) -> None:
        """Batches become frames, ``Handler.round_end`` is called; afterwards ``take_output`` of ``dirty_conns``."""

    def dirty_conns(self) -> list[Conn]:
        """Return the connections that have something to send or to change, and forget the list."""
        raise NotImplementedError

    def take_output(self, conn: Conn, bytes_max: int = 1 << 30) -> bytes:
        """Return and remove what is to be sent; b"" while acknowledgements in it are held for want of a lease."""
        raise NotImplementedError

    def wants_round(self) -> bool:
        """Whether ``begin_round`` would find something to do without new bytes."""
        raise NotImplementedError

    def sweep(self, now_ns: int) -> None:
        """Report silent clients (``Handler.error`` 0x8D) and sockets without CONNECT (0x80); once a second or so."""

    # -- connections

    def attach(self, fd: int, kind: int, options: ConnOptions, now_ns: int) -> Conn:
        """Take a connected non-blocking socket (-1: none, simulation) as CLIENT or LINK."""
        raise NotImplementedError

    def open_session(self, conn: Conn, options: SessionOptions) -> None:
        """CONNECT was accepted: from the next packet on, these bounds hold. Write CONNACK and resume separately.

        A durable session is bound by it: pushes of (session, owner_epoch) are written here from now on.
        """

    def write(self, conn: Conn, data: bytes, needs_lease: bool = False) -> None:
        """Append whole packets to the output.

        needs_lease: held at the flush while the node is fenced (CONNACK, SUBACK, UNSUBACK).
        """

    def resume(self, conn: Conn) -> None:
        """End the parking by a Handler call. Parsing goes on after that call returns, or in the next round."""

    def close(self, conn: Conn, last: bytes = b"", linger: bool = True) -> None:
        """Write ``last``, stop reading, flush, half-close; the socket ends when the peer closed, or after 2 s.

        ``conn.closed`` is set at once, ``Handler.closed`` is called at the end of the round.
        linger False: end without waiting for the client (it is dead or hostile).
        """

    def output_bytes(self, conn: Conn) -> int:
        """Bytes not yet taken by the socket."""
        raise NotImplementedError

    def forget_permissions(self, conn: Conn) -> None:
        """Ask ``authorize`` again for every topic of this connection."""

    # -- publishing

    def install_route(self, topic: bytes, route: Route) -> None:
        """Cache where a topic goes; the oldest entry is dropped beyond ``routes_max``."""

    def route(self, topic: bytes) -> Route | None:
        """Return the cached Route."""
        raise NotImplementedError

    def drop_route(self, topic: bytes) -> None:
        """Forget a topic's Route and the local subscribers kept for forwarded messages. Unknown topics are fine."""

    def drop_routes(self) -> None:
        """Forget all of them."""

    def publish(
        self,
        route: Route,
        publish: Inbound,
        extra_partition: int = -1,
        origin_kind: int = 0,
        origin_a: int = 0,
        origin_b: int = 0,
        on_done: Callable[[int], None] | None = None,
    ) -> None:
        """Send a message to every destination of the route, like one that was parsed.

        With ``publish.conn`` and QoS 1/2, PUBACK or PUBREC is written when all destinations have acknowledged, in the
        order in which ``Handler.inbound`` was called. ``on_done`` gets the final reason code (0, 0x10, or >= 0x80); at
        once if nothing has to be waited for.

        Args:
            route: The topic's route, from ``route`` or made for this call.
            publish: What to send. ``retain`` goes to ``extra_partition`` and to subscribers with retain_as_published.
            extra_partition: The partition of the topic's retained register, -1 for none.
            origin_kind: OriginKind; EDGE gives (incarnation, tag) and ignores the other two.
            origin_a: Session number, or will partition << 32 | partition_epoch.
            origin_b: Inbound counter, or op_index.
            on_done: Called once.
        """

    def acknowledge(self, publish: Inbound, reason_code: int) -> None:
        """Answer a PUBLISH of ``Handler.inbound`` without sending it anywhere, in order with the others."""

    def released(self, conn: Conn, packet_identifier: int, reason_code: int) -> None:
        """Write PUBCOMP for a PUBREL of ``Handler.pubrel`` and count its quota back."""

    def deliver(self, conn: Conn, publish: Inbound, qos: int, identifiers: bytes = b"") -> bool:
        """Send one message to one ephemeral session outside any route: retained copies, held messages; RETAIN as given.

        Returns:
            False if it was dropped, counted.
        """
        raise NotImplementedError

    # -- lease

    def set_lease(self, until_ns: int) -> None:
        """The lease runs out at ``until_ns`` on CLOCK_BOOTTIME; 0: none. Renewing it ends the holding of acks."""

    @property
    def has_lease(self) -> bool:
        """Whether ``now_ns`` is before the end of the lease."""
        raise NotImplementedError

    # -- peers

    def add_peer(self, node: int, tier: str, incarnation: int) -> Peer:
        """Make a peer with a fresh LinkCore; replaces nothing: strike the older incarnation."""
        raise NotImplementedError

    def bind_link(self, conn: Conn, peer: Peer, peer_taken: int) -> None:
        """HELLOs were exchanged on ``conn``: frames not taken are sent again, an older connection is closed.

        Raises:
            LinkError: From ``LinkCore.connected``; strike the peer.
        """

    def control(self, peer: Peer, kind: int, payload: bytes) -> None:
        """Send one numbered frame, behind what was published before it. Kept while the link is down.

        Raises:
            LinkFull: Nothing was sent.
        """

    def strike_peer(self, peer: Peer) -> None:
        """The map declared this incarnation dead: what waits for it as an edge is done, its link is closed.

        Messages towards partitions stay in their outboxes until ``replay_partition``.
        """

    def set_primary(self, partition: int, peer: Peer | None) -> None:
        """The map names another primary, or none. The outbox is held until ``replay_partition``."""

    def replay_partition(self, partition: int, peer: Peer) -> int:
        """Send every unacknowledged message of the partition to its new primary in order, marked as repeats.

        Later messages queue behind them. Returns:
            How many will be sent.
        """
        raise NotImplementedError

    def lowest_tag(self, partition: int) -> int:
        """Every tag below it is finished at that partition: the watermark of this edge's origins."""
        raise NotImplementedError

    # -- durable sessions

    def set_home(self, conn: Conn, peer: Peer | None) -> None:
        """Name the peer that gets this session's PUSH_ACKs. None: they wait (at most one per open entry)."""

    def open_pushes(self, conn: Conn) -> list[tuple[int, int, int]]:
        """Return (session_seq, packet identifier, state) written here and not acknowledged: 1, 2 PUBLISH; 3 PUBREL."""
        raise NotImplementedError

    # -- figures

    def counters(self) -> dict[str, int]:
        """Return all counters by name; ``dropped_*`` carry their reason."""
        raise NotImplementedError


_UNUSED = (Message, LinkCore)
