# mypy: disable-error-code="no-any-return, assignment, union-attr, arg-type"
"""``Hot``: the sans-IO centre of the loop, and everything the edge core may ask of it.

Takes bytes and the time, gives bytes. ``edge/hot/loop.py`` puts sockets around it; tests and the simulation call
``begin_round``, ``feed``, ``end_round`` and ``take_output`` themselves. Nothing here reads a clock or rolls dice.
Decision: docs/adr/0008-trio-with-a-compiled-loop.md.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import cython

from edge.hot.options import ConnOptions, HotLimits, SessionOptions
from edge.hot.state import Conn, HotState, Inbound, Message, Outbox, Packet, Peer, Route
from wire.links.link import LinkCore, LinkError

if not cython.compiled:
    from edge.hot.ack_rows import flush_rows
    from edge.hot.acks import count_back, destination_done, new_message
    from edge.hot.batches import flush_batches, flush_peer, release_peer
    from edge.hot.buffers import append_bytes, take_bytes
    from edge.hot.deliver import deliver_to, drain_pending
    from edge.hot.excess import owes_too_long
    from edge.hot.fanout import fan_out, pick_again, refused
    from edge.hot.forwarded import receive_link
    from edge.hot.layout import (
        BY_PEER,
        BY_US,
        FAILED,
        FAILURE,
        KEEP_ALIVE_TIMEOUT,
        NO_MATCHING_SUBSCRIBERS,
        RECEIVE_MAXIMUM_EXCEEDED,
        SERVER_UNAVAILABLE,
        SUPERSEDED,
        UNSPECIFIED_ERROR,
    )
    from edge.hot.memory import count_held, forget_waiting, share_of
    from edge.hot.origins import was_picked
    from edge.hot.outboxes import leave_outbox, note_former, pump_outboxes
    from edge.hot.output import (
        drained,
        end_lag,
        mark_dirty,
        note_high,
        output_of,
        pending_output,
        release_waiters,
        take_dirty,
        unlink_dirty,
        unpark,
        write_short,
    )
    from edge.hot.parse import parse
    from edge.hot.picks import unfinished_picks
    from edge.hot.pushes import flush_push_acks
    from edge.hot.routes import known_route
    from edge.hot.state import PARK_HANDLER, PARK_OUTPUT, PARK_RATE

if TYPE_CHECKING:
    from edge.hot.handler import Handler

__all__ = ["Hot"]

NEVER = 1 << 62
LINK_SILENCE_NS = 4_000_000_000  # the other side says every second that it lives
LINGER_NS = 2_000_000_000  # how long a closed socket waits for its client to close
NO_LIMIT = 1 << 40
PACED_EVERY_NS = 10_000_000
PACED_BURST_NS = 500_000_000  # half a second's worth is free again: not woken for every message
CLOSINGS_MAX = 50  # ended connections that the core is told of in a round: a few milliseconds


class Hot(HotState):
    """All connections, routes and peers of one edge process.

    Attributes:
        now_ns: Time of the current round, CLOCK_BOOTTIME; what ``set_lease`` is compared with.
        round_end_ns: When ``Handler.round_end`` wants to be called again, 0 (at first): at the end of every round.
        authorizing: Ask ``Handler.authorize`` on a connection's first use of a topic; off by default.
        ledger: AckSink or None; ledger_offset_ns: UTC minus the loop's clock, for its records.
    """

    def __init__(self, handler: "Handler", incarnation: int, limits: HotLimits) -> None:
        HotState.__init__(self, handler, incarnation, limits)

    # -- rounds (called by edge/hot/loop.py, or by a test in its place)

    def begin_round(self, now_ns: cython.longlong) -> None:
        """Set the time, and parse on where resumed or released connections stopped."""
        conn: Conn
        self.now_ns = now_ns
        self.leased = now_ns < self.lease_until_ns
        self.round_bytes = 0
        self.rounds += 1
        if self.high:
            end_lag(self)
        if self.paced and now_ns - self.paced_at_ns >= PACED_EVERY_NS:
            self.read_paced()
        if self.ready:
            ready = self.ready
            self.ready = []
            for conn in ready:
                if self.round_bytes > self.round_bytes_max:
                    self.ready.append(conn)
                    continue
                conn.ready = False
                if not conn.closed and conn.parked == 0:
                    self.parse_kept(conn)
                    if not conn.hearing and not conn.closed and (conn.parked == 0 or not conn.partial):
                        self.forget(conn, BY_PEER)
                mark_dirty(self, conn)

    def read_paced(self) -> None:
        """Go on with the clients whose publish rate has recovered."""
        conn: Conn
        still: list[Conn] = []
        self.paced_at_ns = self.now_ns
        for conn in self.paced:
            if conn.closed or conn.paid_ns <= self.now_ns + PACED_BURST_NS:
                unpark(self, conn, PARK_RATE)
            else:
                still.append(conn)
        self.paced = still

    def feed(self, conn: Conn, data: bytes) -> None:
        """Take bytes that arrived; while ``conn.parked`` or after a close nothing must be fed."""
        if conn.closed:
            return
        # Before CONNECT or HELLO the time runs from accept, whatever trickles in.
        if conn.version != 0 or conn.peer is not None:
            conn.heard_ns = self.now_ns
        self.bytes_in += len(data)
        if conn.filter is not None:
            data = self.unwrap(conn, data)
        if not data or conn.closed:
            return
        if conn.is_link:
            self.feed_link(conn, data)
        else:
            self.feed_client(conn, data)

    def feed_link(self, conn: Conn, data: bytes) -> None:
        """Bytes of another node; what cannot be read ends the connection."""
        try:
            receive_link(self, conn, data)
        except (LinkError, ValueError) as error:
            if conn.peer is not None and isinstance(error, ValueError):  # not the framing: what a frame holds
                self.handler.broke(conn.peer, str(error))
            self.fail(conn, FAILED)

    def end_of_file(self, conn: Conn) -> None:
        """The peer closed or reset its direction: the connection ends like by ``close``.

        What it said before still counts: bytes that wait behind a parking (a PUBLISH for its route, then DISCONNECT)
        are parsed first, and the connection ends after them.
        """
        conn.hearing = False
        if not conn.closed and (conn.parked == 0 or not conn.partial or conn.is_link):
            self.forget(conn, BY_PEER)
        if conn.closed:
            mark_dirty(self, conn)

    def end_round(self, now_ns: cython.longlong) -> None:
        """Batches become frames, ``Handler.round_end`` is called; afterwards ``take_output`` of ``dirty_conns``."""
        self.now_ns = now_ns
        self.leased = now_ns < self.lease_until_ns
        self.closings = CLOSINGS_MAX
        if self.gone:
            self.call_closed()
        if self.held_bytes > self.held_bytes_max:
            self.handler.memory_exceeded()
        if now_ns >= self.round_end_ns:
            self.handler.round_end(now_ns)
        if self.gone:
            self.call_closed()
        if self.pumping and self.leased:
            pump_outboxes(self)
        if self.busy_peers:
            flush_batches(self)
        if self.ledger_count:
            flush_rows(self)  # last: before what it records leaves

    def dirty_conns(self) -> list[Conn]:
        """Return the connections that have something to send or to change, and forget the list."""
        conn: Conn | None = take_dirty(self)
        dirty: list[Conn] = []
        while conn is not None:
            dirty.append(conn)
            conn = unlink_dirty(conn)
        return dirty

    def take_output(self, conn: Conn, bytes_max: int = 1 << 30) -> bytes:
        """Return and remove what is to be sent; b"" while acknowledgements in it are held for want of a lease.

        A link gives its own bytes first, then whole frames: call it until it is empty.
        """
        data: bytes = b""
        if conn.has_acks and not self.leased and not conn.closed:
            return b""  # set_lease lists it again
        if conn.out is not None:
            data = take_bytes(conn.out, bytes_max)
            if conn.outbound is not None and conn.outbound.pending and pending_output(conn) <= self.output_high:
                drain_pending(self, conn)
            drained(self, conn)
            count_held(self, conn)
        if conn.is_link and conn.peer is not None and not data:
            data = conn.peer.link.take_output()
        if conn.filter is not None:
            if data:
                data = conn.filter.wrap(data)
            data = conn.filter.take_output() + data
        self.bytes_out += len(data)
        return data

    def wants_round(self) -> bool:
        """Whether ``begin_round`` would find something to do without new bytes."""
        return bool(self.ready or self.gone)

    def sweep(self, now_ns: int) -> None:
        """Report silent clients (``Handler.error`` 0x8D), sockets without CONNECT (0x80), owed PUBRELs (0x93).

        Once a second or so.
        """
        conn: Conn
        self.now_ns = now_ns
        for conn in list(self.conns.values()):
            if conn.excess and not conn.closed and owes_too_long(self, conn, now_ns):
                conn.excess = False  # reported once
                conn.parked |= PARK_HANDLER
                self.handler.error(conn, RECEIVE_MAXIMUM_EXCEEDED)
            elif conn.parked != 0 and conn.version != 0:
                conn.heard_ns = now_ns  # it is we who do not listen
            elif conn.silence_ns and now_ns - conn.heard_ns > conn.silence_ns and not conn.closed:
                conn.silence_ns = 0  # reported once
                conn.parked |= PARK_HANDLER
                self.handler.error(conn, KEEP_ALIVE_TIMEOUT if conn.version else UNSPECIFIED_ERROR)

    # -- connections

    def attach(self, fd: int, kind: int, options: ConnOptions, now_ns: int) -> Conn:
        """Take a connected non-blocking socket (-1: none, simulation) as CLIENT or LINK."""
        self.numbers += 1
        conn = Conn(fd, kind, self.numbers)
        conn.owner = options.owner
        conn.heard_ns = now_ns
        conn.silence_ns = options.connect_timeout_ns
        conn.packet_bytes_max = options.packet_bytes_max
        conn.client_packet_max = NO_LIMIT
        conn.filter = options.filter
        if options.tls is not None or options.first_bytes is not None:
            conn.options = options
        self.conns[conn.number] = conn
        if fd >= 0:
            mark_dirty(self, conn)
        return conn

    def open_session(self, conn: Conn, options: SessionOptions) -> None:
        """CONNECT was accepted: from the next packet on, these bounds hold. Write CONNACK and resume separately.

        A durable session is bound by it: pushes of (session, owner_epoch) are written here from now on.
        """
        conn.version = options.version
        conn.session = options.session
        conn.owner_epoch = options.owner_epoch
        conn.window = min(options.receive_maximum, self.window_max)
        conn.client_packet_max = options.maximum_packet_size or NO_LIMIT
        conn.silence_ns = options.keep_alive_ns + options.keep_alive_ns // 2  # [MQTT-3.1.2-22]
        conn.heard_ns = max(conn.heard_ns, self.now_ns)
        conn.quota_max = options.announced_receive_maximum
        conn.fresh = options.fresh
        conn.packet_bytes_max = options.announced_maximum_packet_size
        conn.alias_max = options.announced_topic_alias_maximum if options.version == 5 else 0
        conn.aliases_told_max = options.topic_alias_maximum
        conn.aliases_told = {} if options.version == 5 and options.topic_alias_maximum > 0 else None
        conn.retain_available = options.retain_available
        conn.qos_max = options.maximum_qos
        if options.session:
            self.sessions[options.session] = conn

    def write(self, conn: Conn, data: bytes, needs_lease: bool = False) -> None:
        """Append whole packets to the output.

        needs_lease: held at the flush while the node is fenced (CONNACK, SUBACK, UNSUBACK).
        """
        if conn.closed:
            return
        if needs_lease:
            conn.has_acks = True
        append_bytes(output_of(self, conn), data)

    def resume(self, conn: Conn) -> None:
        """End the parking by a Handler call. Parsing goes on after that call returns, or in the next round."""
        unpark(self, conn, PARK_HANDLER)

    def close(self, conn: Conn, last: bytes = b"", linger: bool = True) -> None:
        """Write ``last``, stop reading, flush, half-close; the socket ends when the peer closed, or after 2 s.

        ``conn.closed`` is set at once, ``Handler.closed`` is called at the end of the round.
        linger False: end without waiting for the client (it is dead or hostile).
        """
        if conn.closed:
            return
        cut: cython.bint = conn.out is not None and conn.out.start > 0
        self.forget(conn, BY_US)
        if last and not (cut and conn.out is None):  # never behind half a packet
            append_bytes(output_of(self, conn), last)
        conn.close_at_ns = self.now_ns + LINGER_NS if linger else 0
        mark_dirty(self, conn)

    # -- the end

    def stop_reading(self) -> None:
        """Read nothing more from clients, for ever: what was read is parsed on and answered."""
        self.reading = False

    def owes(self, conn: Conn) -> bool:
        """Whether something that was read from a client is not carried out or not answered yet."""
        return bool(conn.gate) or conn.ready or (conn.parked & ~PARK_OUTPUT) != 0

    def owes_partitions(self) -> bool:
        """Whether messages to partitions are not acknowledged."""
        return self.outbox_bytes > 0

    def lingers(self) -> bool:
        """Whether last bytes wait for their sockets, or closed sockets for their clients."""
        return self.dirty_first is not None or bool(self.gone) or any(conn.fd >= 0 for conn in self.lingering)

    def cut(self, conn: Conn, last: bytes = b"") -> None:
        """Close a client that makes us hold too much, and hold nothing of it; ``last`` is said where that can be."""
        if conn.closed:
            return
        whole: cython.bint = (conn.out is None or conn.out.start == 0) and conn.unsent is None and conn.tls is None
        self.forget(conn, BY_US)
        conn.out = None
        conn.unsent = None
        forget_waiting(self, conn)
        if last and whole:
            append_bytes(output_of(self, conn), last)
            conn.close_at_ns = self.now_ns + LINGER_NS
        else:
            conn.close_at_ns = 0
        mark_dirty(self, conn)

    def bound_held_bytes(self, bytes_max: int) -> None:
        """Call ``Handler.memory_exceeded`` in rounds that end with more held for clients."""
        self.held_bytes_max = bytes_max

    def largest_holders(self, count: int) -> list[Conn]:
        """Return the clients for which most is held, the largest first."""
        conn: Conn
        shares: list[tuple[int, int]] = []
        least: cython.Py_ssize_t = max(4096, self.held_bytes // (2 * len(self.conns) + 1))
        for conn in self.conns.values():
            if not conn.is_link and not conn.closed and share_of(conn) > least:  # half of the mean, or more
                shares.append((share_of(conn), conn.number))
        return [self.conns[number] for _, number in heapq.nlargest(count, shares)]

    def output_bytes(self, conn: Conn) -> int:
        """Bytes not yet taken by the socket."""
        return pending_output(conn)

    def forget_permissions(self, conn: Conn) -> None:
        """Ask ``authorize`` again for every topic of this connection."""
        conn.permissions = None
        conn.last_version = -1

    # -- publishing

    def install_route(self, topic: bytes, route: Route) -> None:
        """Cache where a topic goes; the oldest entry is dropped beyond ``routes_max``."""
        if topic in self.routes:
            self.routes_version += 1  # connections remember the Route that they used last
        elif len(self.routes) >= self.routes_max:
            del self.routes[next(iter(self.routes))]
            self.routes_version += 1
        route.generation = self.generation
        self.routes[topic] = route

    def route(self, topic: bytes) -> Route | None:
        """Return the cached Route, right as of now."""
        return known_route(self, topic)

    def keep_route(self, route: Route) -> None:
        """Say in ``Handler.refresh`` that a Route is right."""
        route.generation = self.generation

    def replace_route(self, route: Route) -> None:
        """Put a Route in the place of the topic's former one, in ``Handler.refresh``."""
        route.generation = self.generation
        # No connection remembers the former one: the change of generation made each of them look again.
        self.routes[route.topic] = route

    def drop_route(self, topic: bytes) -> None:
        """Forget a topic's Route and the local subscribers kept for forwarded messages. Unknown topics are fine."""
        if self.routes.pop(topic, None) is not None:
            self.routes_version += 1
        self.local_routes.pop(topic, None)

    def drop_routes(self) -> None:
        """Forget all of them."""
        self.routes.clear()
        self.local_routes.clear()
        self.routes_version += 1

    def drop_oldest_local(self, count: int) -> None:
        """Forget the local subscribers kept for the topics that were forwarded first."""
        for topic in list(itertools.islice(self.local_routes, count)):
            del self.local_routes[topic]

    def refresh_routes(self) -> None:
        """Have every Route looked at before it is used again: subscriptions or peers changed."""
        self.generation += 1
        self.routes_version += 1

    def refresh_route(self, topic: bytes) -> None:
        """Have one topic's Route looked at before it is used again."""
        route: Route | None = self.routes.get(topic)
        if route is not None:
            route.generation = -1
        route = self.local_routes.get(topic)
        if route is not None:
            route.generation = -1
        self.routes_version += 1

    def publish(
        self,
        route: Route,
        publish: Inbound,
        extra_partition: int = -1,
        origin_kind: int = 0,
        origin_a: int = 0,
        origin_b: int = 0,
        on_done: Callable[[int], object] | None = None,
        written: tuple[int, int] | None = None,
    ) -> int:
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
            on_done: Called once; what it returns says whether the acknowledgement waits for ``acknowledge``.
            written: (tag, partition) of what this method returned when the same message went to its register.

        Returns:
            Its tag, 0 for QoS 0.
        """
        message: Message | None = publish.gated
        publish.gated = None
        if message is None and (publish.qos > 0 or on_done is not None):
            message = new_message(self, publish.qos, publish.conn, 0)
            message.waiting = 1
        elif message is not None:
            # Numbered when it came, and others have left since: a partition takes a lower number for a repeat.
            self.tags += 1
            message.tag = self.tags
        packet: Packet = self.load_inbound(publish)
        packet.origin_kind = origin_kind
        packet.origin_a = origin_a
        packet.origin_b = origin_b
        code: cython.int = route.reason_code
        if message is not None:
            message.on_done = on_done
            publish.gated = message
            message.delivered = written is not None
        if written is not None:
            self.named = written[0]  # one origin: a retained copy and its live twin are told by it
        if code == 0:
            fan_out(self, publish.conn, route, packet, message if publish.qos > 0 else None, extra_partition)
        self.named = 0
        if message is None:
            return 0
        tag: cython.ulonglong = message.tag
        if written is not None:
            message.register = written[1]  # for the audit: both went by one origin
        if code == 0 and route.empty:
            code = NO_MATCHING_SUBSCRIBERS  # kept as retained, perhaps; nobody subscribed
        destination_done(self, message, code)
        return tag

    def acknowledge(self, publish: Inbound, reason_code: int) -> None:
        """Answer a PUBLISH of ``Handler.inbound`` in order with the others: not sent anywhere, or kept back since."""
        message: Message | None = publish.gated
        publish.gated = None
        if message is not None:
            destination_done(self, message, reason_code)

    def send_pick(self, copy: Message, chosen: object) -> None:
        """Go on with a shared group's copy that ``Handler.refused`` answered with the copy itself."""
        pick_again(self, copy, chosen)

    def knows_pick(self, share: bytes, session: int, counter: int) -> bool:
        """Whether a member here got the message of this origin as its group's pick."""
        return was_picked(self, share, 1, session, counter)

    def take_picks(self, conn: Conn) -> list[tuple[bytes, Inbound]]:
        """Return (share, message) of copies that an ended session leaves for another member of their groups; once."""
        return unfinished_picks(self, conn)

    def released(self, conn: Conn, packet_identifier: int, reason_code: int) -> None:
        """Write PUBCOMP for a PUBREL of ``Handler.pubrel`` and count its quota back."""
        if conn.closed:
            return
        write_short(self, conn, 0x70, packet_identifier, reason_code)
        conn.has_acks = True
        if conn.version == 5 and reason_code < FAILURE:
            count_back(self, conn)

    def deliver(self, conn: Conn, publish: Inbound, qos: int, identifiers: bytes = b"") -> bool:
        """Send one message to one ephemeral session outside any route: retained copies, held messages; RETAIN as given.

        Returns:
            False if it was dropped, counted.
        """
        if conn.closed:
            self.dropped_closed += 1
            return False
        delivered: cython.bint = deliver_to(self, conn, self.load_inbound(publish), qos, publish.retain, identifiers)
        if pending_output(conn) > self.output_high:
            note_high(self, conn)
        return delivered

    # -- lease

    def set_lease(self, until_ns: int) -> None:
        """The lease runs out at ``until_ns`` on CLOCK_BOOTTIME; 0: none. Renewing it ends the holding of acks."""
        conn: Conn
        was: cython.bint = self.leased
        self.lease_until_ns = until_ns
        self.leased = self.now_ns < until_ns
        if self.leased and not was:
            for conn in self.conns.values():
                if conn.has_acks:
                    mark_dirty(self, conn)

    @property
    def has_lease(self) -> bool:
        """Whether ``now_ns`` is before the end of the lease."""
        return self.leased

    # -- peers

    def add_peer(self, node: int, tier: str, incarnation: int) -> Peer:
        """Make a peer with a fresh LinkCore; replaces nothing: strike the older incarnation."""
        peer = Peer(node, tier, incarnation, LinkCore())
        self.peers.append(peer)
        return peer

    def unbind_link(self, peer: Peer) -> None:
        """A newer connection to the same life is about to be bound: end the older one before TAKEN is told."""
        older = peer.conn
        if older is not None:
            older.peer = None
            peer.conn = None
            peer.link.disconnected()
            self.close(older, linger=False)

    def bind_link(self, conn: Conn, peer: Peer, peer_taken: int) -> None:
        """HELLOs were exchanged on ``conn``: frames not taken are sent again, an older connection is closed.

        Raises:
            LinkError: From ``LinkCore.connected``; strike the peer.
        """
        older = peer.conn
        peer.link.connected(peer_taken)
        peer.conn = conn
        conn.peer = peer
        conn.silence_ns = LINK_SILENCE_NS  # a peer without power closes nothing
        if older is not None and not older.closed:
            older.peer = None
            self.close(older, linger=False)
        unpark(self, conn, PARK_HANDLER)
        mark_dirty(self, conn)

    def control(self, peer: Peer, kind: int, payload: bytes) -> None:
        """Send one numbered frame, behind what was published before it. Kept while the link is down.

        Raises:
            LinkFull: Nothing was sent.
        """
        flush_peer(self, peer) if self.leased else None
        number = peer.link.send(kind, payload)
        peer.room = peer.link.room()
        if peer.conn is not None:
            mark_dirty(self, peer.conn)
        _ = number

    def strike_peer(self, peer: Peer) -> None:
        """The map declared this incarnation dead: what waits for it as an edge is done, its link is closed.

        Messages towards partitions stay in their outboxes until ``replay_partition``.
        """
        if peer.struck:
            return
        peer.struck = True
        if peer in self.peers:
            self.peers.remove(peer)
        for partition, primary in enumerate(self.primaries):
            if primary is peer:
                self.set_primary(partition, None)
        release_peer(self, peer)
        batches = [messages for _, messages in peer.inflight]
        batches += [messages for _, _, messages in peer.blocked if messages]
        batches.append(peer.batch_messages)
        peer.inflight.clear()
        peer.blocked.clear()
        peer.batch_messages = []
        peer.batch = None
        peer.publish_acks = None
        peer.push_acks = None
        message: Message
        for messages in batches:
            for message in messages:
                destination_done(self, message, 0)
        picks = list(peer.picks.values())
        peer.picks.clear()
        for message in picks:
            refused(self, message, SERVER_UNAVAILABLE)
        if peer.conn is not None:
            self.close(peer.conn, linger=False)

    def set_partitions(self, count: int) -> None:
        """Take the number of partitions of the map; it never becomes lower."""
        missing = count - len(self.primaries)
        if missing > 0:
            self.primaries += [None] * missing
            self.epochs += [0] * missing
            self.outboxes += [None] * missing

    def set_epoch(self, partition: int, partition_epoch: int) -> None:
        """Note the epoch that a partition is at: a primary refuses messages that were meant for an earlier time of its.

        Before ``set_primary`` and ``replay_partition``, which send again what was sent under the former one.
        """
        self.epochs[partition] = partition_epoch

    def set_primary(self, partition: int, peer: Peer | None) -> None:
        """The map names another primary, or none. The outbox is held until ``replay_partition``."""
        outbox: Outbox | None = self.outboxes[partition]
        former: Peer | None = self.primaries[partition]
        if former is peer:
            return
        self.primaries[partition] = peer
        self.primaries_version += 1
        if outbox is None:
            outbox = Outbox()
            self.outboxes[partition] = outbox
        if former is not None:
            note_former(self, outbox, former)
        # Nothing may overtake what the former primary did not acknowledge; nothing to replay: nothing to hold.
        if not outbox.messages and peer is not None:
            outbox.held = False
            outbox.unsent.clear()
        elif not outbox.held:
            outbox.held = True
        outbox.target = None

    def replay_partition(self, partition: int, peer: Peer) -> int:
        """Send every unacknowledged message of the partition to its new primary in order, marked as repeats.

        Later messages queue behind them. What a publisher with a stored session sends again on its next connection is
        forgotten: the new primary may not have heard of that one, and take it behind newer messages.

        Returns:
            How many will be sent.
        """
        outbox: Outbox | None = self.outboxes[partition]
        if outbox is None:
            return 0
        if self.primaries[partition] is not peer:
            self.set_primary(partition, peer)
        outbox.held = True
        outbox.target = peer
        message: Message
        for message in list(outbox.messages.values()):
            if _comes_again(message):
                del outbox.messages[message.tag]
                leave_outbox(self, message)
                destination_done(self, message, SUPERSEDED)  # nobody is told
        outbox.unsent = deque(outbox.messages.values())
        if partition not in self.pumping:
            self.pumping.append(partition)
        return len(outbox.unsent)

    def lowest_tag(self, partition: int) -> int:
        """Every tag below it is finished at that partition: the watermark of this edge's origins."""
        outbox: Outbox | None = self.outboxes[partition]
        if outbox is None or not outbox.messages:
            return self.tags + 1
        return next(iter(outbox.messages))

    # -- durable sessions

    def set_home(self, conn: Conn, peer: Peer | None) -> None:
        """Name the peer that gets this session's PUSH_ACKs. None: they wait (at most one per open entry)."""
        conn.peer = peer
        flush_push_acks(self, conn)

    def open_pushes(self, conn: Conn) -> list[tuple[int, int, int]]:
        """Return (session_seq, packet identifier, state) written here and not acknowledged: 1, 2 PUBLISH; 3 PUBREL."""
        if conn.outbound is None or conn.outbound.pushes is None:
            return []
        return [
            (session_seq, identifier, state) for identifier, (session_seq, _, state) in conn.outbound.pushes.items()
        ]

    # -- figures

    def counters(self) -> dict[str, int]:
        """Return all counters and gauges by name; ``dropped_*`` carry their reason."""
        figures = self.counted()
        figures["connections"] = len(self.conns)
        figures["routes"] = len(self.routes)
        figures["outbox_bytes"] = self.outbox_bytes
        figures["held_bytes"] = self.held_bytes
        figures["output_high"] = len(self.high)
        return figures

    # -- inside

    def feed_client(self, conn: Conn, data: bytes) -> None:
        """Parse what came, behind what was kept."""
        kept: cython.Py_ssize_t = len(conn.partial)
        consumed: cython.Py_ssize_t
        if kept > 0:
            data = conn.partial + data
            if conn.parked != 0 or len(data) < conn.needed:
                conn.partial = data
                count_held(self, conn)
                return
            conn.partial = b""
        consumed = parse(self, conn, data, 0, len(data))
        if consumed < len(data) and not conn.closed:
            conn.partial = data[consumed:] if consumed > 0 else data
        count_held(self, conn)

    def parse_kept(self, conn: Conn) -> None:
        """Parse on where a parked connection stopped."""
        data: bytes = conn.partial
        conn.partial = b""
        if conn.is_link:
            if data:
                self.feed_link(conn, data)
            return
        consumed: cython.Py_ssize_t = parse(self, conn, data, 0, len(data))
        if consumed < len(data) and not conn.closed:
            conn.partial = data[consumed:] if consumed > 0 else data
        count_held(self, conn)

    def unwrap(self, conn: Conn, data: bytes) -> bytes:
        """Bytes through the connection's filter; b"" when it has none yet, or gave up."""
        inner = conn.filter.receive(data)
        mark_dirty(self, conn)
        if inner is None:
            self.fail(conn, FAILED)
            return b""
        return inner

    def fail(self, conn: Conn, why: cython.int) -> None:
        """The transport is unusable: end it without lingering."""
        self.forget(conn, why)
        conn.close_at_ns = 0
        mark_dirty(self, conn)

    def forget(self, conn: Conn, why: cython.int) -> None:
        """No packet of this connection counts any more; the socket may still be flushed."""
        conn.closed = True
        conn.why = why
        conn.partial = b""
        conn.gate = None
        conn.received = None
        conn.last_route = None
        conn.last_topic = b""
        conn.last_version = -1
        conn.aliases = None
        conn.aliases_told = None
        conn.permissions = None
        conn.lagging = False
        if conn.has_acks and not self.leased:
            conn.out = None  # what a fenced node held back is never said [PROTOCOL 1.6]
        release_waiters(self, conn)
        if conn.session and self.sessions.get(conn.session) is conn:
            del self.sessions[conn.session]
        if conn.is_link:
            self.gone.insert(0, conn)  # not behind the clients of a switch that died
        else:
            self.gone.append(conn)

    def call_closed(self) -> None:
        """Tell the core which connections ended, outside of any other call; no more in a round than it has time for."""
        conn: Conn
        while self.gone and self.closings > 0:
            gone = self.gone[: self.closings]
            self.gone = self.gone[self.closings :]
            self.closings -= len(gone)
            for conn in gone:
                self.conns.pop(conn.number, None)
                peer = conn.peer
                if conn.is_link and peer is not None and peer.conn is conn:
                    peer.conn = None
                    if not peer.struck:
                        peer.link.disconnected()
                        self.handler.link_lost(peer)
                self.handler.closed(conn, conn.why)
                forget_waiting(self, conn)

    def load_inbound(self, publish: Inbound) -> Packet:
        """Make the core's message the one at hand."""
        packet: Packet = self.packet
        both: bytes = publish.properties + publish.payload
        packet.keep = both
        packet.data = both
        packet.version = 5 if publish.version == 5 else 4
        packet.qos = publish.qos
        packet.retain = publish.retain
        packet.dup = False
        packet.pending_key = -1
        packet.expiry_s = publish.expiry_s
        packet.alias_at = -1
        packet.expiry_at = -1
        packet.topic = publish.topic
        packet.properties_at = 0
        packet.properties_bytes = len(publish.properties)
        packet.plain_bytes = packet.properties_bytes
        packet.payload_at = packet.properties_bytes
        packet.payload_bytes = len(publish.payload)
        packet.origin_kind = 0
        packet.session = publish.conn.session if publish.conn is not None else 0
        packet.owner_epoch = publish.conn.owner_epoch if publish.conn is not None else 0
        return packet


def _comes_again(message: Message) -> bool:
    """Whether the publisher's connection is over, and its session is stored: it sends what was not acknowledged."""
    first: Message = message if message.parent is None else message.parent
    conn: Conn | None = first.conn
    return conn is not None and conn.closed and conn.session != 0
