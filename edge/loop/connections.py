"""Connections of the edge core: their input and output bytes, their limits, their close.

First base class of ``BrokerLoop`` (``edge/loop/broker_loop.py``). It takes and returns bytes; ``edge/loop/loop.py``
owns the sockets.

States of a connection, their conditions, and the transitions:

attached: ``version`` 0, no ``peer``:
    The shell handles the first bytes (PROXY, TLS, WebSocket). ``silence_ns`` runs from accept, regardless of input.
    Only CONNECT or HELLO is accepted.
    -> open; closed.
open: ``version`` 3 to 5, or a ``peer``:
    ``open_session`` sets its limits. ``partial`` holds bytes that were read and not parsed, less than one
    packet unless it is parked.
    -> parked; closed.
parked: a bit of ``parked`` is set:
    Nothing is parsed; bytes that are read are appended to ``ahead``, and PINGREQ in them is answered.
    Each bit has one condition: HANDLER the core's answer, SLOW the slowest subscriber's output, PEER
    capacity of the outboxes, QUOTA an acknowledgement, RATE the clock, OUTPUT the client's reading,
    PIPELINE the last retained message in flight.
    -> open, when the last bit is cleared; closed.
deaf: ``hearing`` is false:
    The socket is at end of file while ``partial`` is parked, and is parsed first; or while ``pipelining``.
    -> closed.
closed: ``closed`` is set:
    No packet counts; it holds no acknowledgement, route or alias. It is in ``closed_conns`` until
    ``Handler.closed`` was called at the end of an iteration. Written output is flushed under a lease.
    -> half closed: all was flushed; gone: at once where ``close_at_ns`` is 0, with the last byte where it is -1.
half closed: ``half_closed``:
    Our direction is shut down; the client has LINGER_NS to close its own, so that it reads our last packet.
    -> gone.
gone: ``fd`` is -1:
    The number is never reused; holders of the record see ``closed``.
    -> none.
"""

import heapq

import cython

from edge.loop.options import ConnOptions, SessionOptions
from edge.loop.shared_rate_limits import SharedRateLimit
from edge.loop.state import LoopConnection, LoopState
from wire.links.link import LinkError

if not cython.compiled:
    from edge.loop.buffers import append_bytes, take_bytes
    from edge.loop.deliver import drain_pending
    from edge.loop.forwarded import receive_link
    from edge.loop.layout import BY_PEER, BY_US, FAILED
    from edge.loop.memory import count_held, release_pending, share_of
    from edge.loop.output import (
        after_send,
        mark_dirty,
        output_of,
        pending_output,
        release_waiters,
        take_dirty,
        unlink_dirty,
        unpark,
    )
    from edge.loop.parked_input import answer_pings, count_parsed, drop_pieces, keep_piece, may_read_ahead, next_piece
    from edge.loop.parse import count_bytes, parse, pause
    from edge.loop.shared_rate_limits import consume_filters
    from edge.loop.state import PARK_HANDLER, PARK_OUTPUT, PARK_PIPELINE

__all__ = ["Connections"]

LINGER_NS = 2_000_000_000  # a closed socket waits so long for its client to close
NO_LIMIT = 1 << 40


class Connections(LoopState):
    """Bytes, limits and ends of connections."""

    def attach(self, fd: int, kind: int, options: ConnOptions, now_ns: int) -> LoopConnection:
        """Add a connected non-blocking socket (-1: none, simulation) as CLIENT or LINK."""
        self.numbers += 1
        conn = LoopConnection(fd, kind, self.numbers)
        conn.context = options.context
        conn.heard_ns = now_ns
        conn.silence_ns = options.connect_timeout_ns
        if options.tls is None and options.first_bytes is None:
            conn.connect_ns = options.first_packet_ns
        conn.packet_bytes_max = options.packet_bytes_max
        conn.client_packet_max = NO_LIMIT
        conn.filter = options.filter
        if options.tls is not None or options.first_bytes is not None:
            conn.options = options
        conn.slot = len(self.conns)
        self.conns.append(conn)
        if fd >= 0:
            mark_dirty(self, conn)
        return conn

    def begin_mqtt(self, conn: LoopConnection) -> None:
        """Start the timeout of the first packet after PROXY header and TLS handshake."""
        options = conn.options
        conn.options = None
        if options is not None and options.first_packet_ns > 0:
            conn.connect_ns = self.now_ns - conn.heard_ns + options.first_packet_ns

    def open_session(self, conn: LoopConnection, options: SessionOptions) -> None:
        """Set the limits of an accepted CONNECT from the next packet on. Write CONNACK and resume separately.

        A durable session is bound to the connection: pushes of (session, owner_epoch) are written to it.
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
        conn.resumed = options.resumed
        conn.packet_bytes_max = options.announced_maximum_packet_size
        conn.alias_max = options.announced_topic_alias_maximum if options.version == 5 else 0
        conn.outbound_aliases_max = options.topic_alias_maximum
        conn.outbound_aliases = {} if options.version == 5 and options.topic_alias_maximum > 0 else None
        conn.retain_available = options.retain_available
        conn.qos_max = options.maximum_qos
        conn.origins = {} if options.tells_origins and options.version == 5 else None
        self.limit(conn, options.publish_rate_max, options.byte_rate_max, options.metered)
        if options.session:
            self.sessions[options.session] = conn

    def limit(self, conn: LoopConnection, publish_rate_max: float, byte_rate_max: float, metered: bool) -> None:
        """Limit a client's rates from now on; 0: the loop's own message rate, no byte rate."""
        conn.publish_gap_ns = int(1e9 / publish_rate_max) if publish_rate_max else self.publish_gap_ns
        conn.byte_gap_ps = int(1e12 / byte_rate_max) if byte_rate_max else 0
        conn.metered = metered

    def share(self, conn: LoopConnection, purse: SharedRateLimit | None) -> None:
        """Let a client consume its address's shared rate limit; None: no shared limit."""
        conn.purse = purse

    def reads_ahead(self, conn: LoopConnection) -> bool:
        """Return whether a parked client may be fed."""
        return bool(may_read_ahead(self, conn))

    def feed(self, conn: LoopConnection, data: bytes) -> None:
        """Process received bytes; while ``conn.parked`` only within ``reads_ahead``, after a close none."""
        if conn.closed:
            return
        # Before CONNECT or HELLO the timeout runs from accept, regardless of input.
        if conn.version != 0 or conn.peer is not None:
            conn.heard_ns = self.now_ns
        self.bytes_in += len(data)
        if conn.filter is not None:
            data = conn.filter.receive(data)
            mark_dirty(self, conn)
        if data:
            if conn.is_link:
                self.feed_link(conn, data)
            else:
                self.feed_client(conn, data)
        if conn.filter is not None and conn.filter.ended and not conn.closed:
            self.fail(conn, FAILED)

    def feed_client(self, conn: LoopConnection, data: bytes) -> None:
        """Parse received bytes behind the buffered ones."""
        kept: cython.Py_ssize_t = len(conn.partial)
        consumed: cython.Py_ssize_t
        if (conn.parked != 0 and conn.version != 0) or (conn.ahead is not None and conn.ahead.bytes > 0):
            keep_piece(self, conn, data)
            count_held(self, conn)
            return
        if kept > 0:
            data = conn.partial + data
            if conn.parked != 0 or len(data) < conn.needed:
                conn.partial = data
                count_held(self, conn)
                return
            conn.partial = b""
        consumed = parse(self, conn, data, 0, len(data))
        self.keep_unparsed(conn, data, consumed, kept == 0)

    def feed_link(self, conn: LoopConnection, data: bytes) -> None:
        """Process bytes of another node; invalid ones close the connection."""
        try:
            receive_link(self, conn, data)
        except (LinkError, ValueError) as error:
            if conn.peer is not None and isinstance(error, ValueError):  # content of a frame, not the framing
                self.handler.broke(conn.peer, str(error))
            self.fail(conn, FAILED)

    def parse_buffered(self, conn: LoopConnection) -> None:
        """Continue parsing a parked connection."""
        data: bytes = conn.partial
        conn.partial = b""
        if conn.is_link:
            if data:
                self.feed_link(conn, data)
            return
        consumed: cython.Py_ssize_t = parse(self, conn, data, 0, len(data))
        self.keep_unparsed(conn, data, consumed, False)

    def keep_unparsed(
        self, conn: LoopConnection, data: bytes, consumed: cython.Py_ssize_t, begins: cython.bint
    ) -> None:
        """Buffer the unparsed bytes; ``begins``: none of them were buffered before."""
        if consumed < len(data) and not conn.closed:
            conn.partial = data[consumed:] if consumed > 0 else data
        self.parsed(conn, consumed, begins)
        if conn.ahead is not None and conn.ahead.bytes > 0:
            next_piece(self, conn)
        if conn.parked != 0:
            self.answer_parked_pings(conn)
        count_held(self, conn)

    def answer_parked_pings(self, conn: LoopConnection) -> None:
        """Answer the PINGREQs behind the packet that parked a connection."""
        if conn.partial and not conn.closed and conn.version != 0 and not conn.is_link:
            answer_pings(self, conn)

    def parsed(self, conn: LoopConnection, consumed: cython.Py_ssize_t, begins: cython.bint) -> None:
        """Charge the parsed bytes; restart the timer of a packet that begins behind them, or with the first bytes."""
        if conn.byte_gap_ps > 0 or conn.purse is not None:
            count_bytes(self, conn, consumed)
        if consumed > 0 or begins:
            conn.packet_begun_ns = self.now_ns
        if conn.ahead is not None:
            count_parsed(conn, consumed)
        if conn.metered and consumed > 0:
            self.handler.sent(conn, consumed)

    def charge(self, conn: LoopConnection, filters: int, gap_ns: int) -> None:
        """Charge filters to the rates of a client and its address: with more than a second's worth it is not read."""
        if gap_ns > 0:
            conn.next_filter_ns = max(conn.next_filter_ns, self.now_ns) + filters * gap_ns
            pause(self, conn, conn.next_filter_ns)
        if conn.purse is not None:
            pause(self, conn, consume_filters(conn.purse, self.now_ns, filters))

    def take_output(self, conn: LoopConnection, bytes_max: int = 1 << 30) -> bytes:
        """Return and remove output; b"" while acknowledgements in it are held without a lease.

        A link returns its own bytes first, then whole frames: call it until it is empty.
        """
        data: bytes = b""
        conn.written += conn.wrapped  # a filter is called only when all its former output was sent
        conn.wrapped = 0
        if conn.has_acks and not self.leased and not conn.closed:
            return b""  # set_lease marks it again
        if conn.out is not None:
            data = take_bytes(conn.out, bytes_max)
            conn.wrapped = len(data)
            if conn.outbound is not None and conn.outbound.pending and pending_output(conn) <= self.output_high:
                drain_pending(self, conn)
            after_send(self, conn)
            count_held(self, conn)
        if conn.is_link and conn.peer is not None and not data:
            data = conn.peer.link.take_output()
        if conn.filter is not None:
            if data:
                data = conn.filter.wrap(data)
            data = conn.filter.take_output() + data
        else:
            conn.written += conn.wrapped
            conn.wrapped = 0
        self.bytes_out += len(data)
        return data

    def dirty_conns(self) -> list[LoopConnection]:
        """Return and clear the list of connections with output or changes."""
        conn: LoopConnection | None = take_dirty(self)
        dirty: list[LoopConnection] = []
        while conn is not None:
            dirty.append(conn)
            conn = unlink_dirty(conn)
        return dirty

    def output_mark(self, conn: LoopConnection) -> int:
        """Return the current end of the output: it is sent when ``written_to`` has reached this."""
        mark: int = conn.written + conn.wrapped + pending_output(conn)
        return mark

    def written_to(self, conn: LoopConnection) -> int:
        """Return the number of output bytes that were sent."""
        written: int = conn.written
        return written

    def write(self, conn: LoopConnection, data: bytes, needs_lease: bool = False) -> None:
        """Append whole packets to the output.

        needs_lease: held at the flush while the node is fenced (CONNACK, SUBACK, UNSUBACK).
        """
        if conn.closed:
            return
        if needs_lease:
            conn.has_acks = True
        append_bytes(output_of(self, conn), data)

    def resume(self, conn: LoopConnection) -> None:
        """Clear the parking by a Handler call. Parsing continues after that call returns, or in the next iteration."""
        unpark(self, conn, PARK_HANDLER)

    def begin_pipeline(self, conn: LoopConnection) -> None:
        """Parse only retained messages of QoS 1 and 2, and packets without order, until ``end_pipeline``."""
        conn.pipelining = not conn.closed

    def end_pipeline(self, conn: LoopConnection) -> None:
        """Parse every packet again: no retained message of the connection is in flight."""
        if conn.pipelining:
            conn.pipelining = False
            unpark(self, conn, PARK_PIPELINE)

    def end_of_file(self, conn: LoopConnection) -> None:
        """Handle end of file or a reset from the peer: the connection ends like by ``close``.

        Buffered bytes still count (a parked PUBLISH, then DISCONNECT). They are parsed first, and the connection ends
        after them and after the retained messages in flight.
        """
        conn.hearing = False
        if conn.pipelining:
            conn.parked |= PARK_PIPELINE
        elif not conn.closed and (conn.is_link or not conn.partial or (conn.parked == 0 and not conn.ready)):
            self.forget(conn, BY_PEER)
        if conn.closed:
            mark_dirty(self, conn)

    def close(self, conn: LoopConnection, last: bytes = b"", linger: bool = True) -> None:
        """Write ``last``, stop reading, flush, half-close; the socket closes with the peer's, or after 2 s.

        ``conn.closed`` is set at once, ``Handler.closed`` is called at the end of the iteration.
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

    def leave(self, conn: LoopConnection) -> None:
        """Close a client after its DISCONNECT: it reads no more, and sends no data that a reset could answer.

        TLS and WebSocket have their own close message behind it, so there the edge waits for the client's close.
        """
        waits: cython.bint = conn.closed or conn.tls is not None or conn.filter is not None
        self.close(conn)
        if not waits:
            conn.close_at_ns = -1

    def cut(self, conn: LoopConnection, last: bytes = b"") -> None:
        """Close a client whose buffers are too large, and free them; ``last`` is sent where possible."""
        if conn.closed:
            return
        # OpenSSL must repeat bytes that the socket refused, so no other packet can follow them.
        whole: cython.bint = conn.unsent is None and (conn.out is None or (conn.out.start == 0 and conn.tls is None))
        self.forget(conn, BY_US)
        conn.out = None
        conn.unsent = None
        release_pending(self, conn)
        if last and whole:
            append_bytes(output_of(self, conn), last)
            conn.close_at_ns = self.now_ns + LINGER_NS
        else:
            conn.close_at_ns = 0
        mark_dirty(self, conn)

    def fail(self, conn: LoopConnection, why: cython.int) -> None:
        """Close a connection with an unusable transport, without lingering."""
        self.forget(conn, why)
        conn.close_at_ns = 0
        mark_dirty(self, conn)

    def forget(self, conn: LoopConnection, why: cython.int) -> None:
        """Mark a connection closed: its later packets are ignored; its socket may still be flushed."""
        conn.closed = True
        conn.why = why
        conn.partial = b""
        if conn.ahead is not None:
            drop_pieces(self, conn)
        conn.ack_queue = None
        conn.received = None
        conn.origins = None
        conn.refused = None
        conn.last_route = None
        conn.last_topic = b""
        conn.last_version = -1
        conn.aliases = None
        conn.outbound_aliases = None
        conn.permissions = None
        conn.lagging = False
        if conn.has_acks and not self.leased:
            conn.out = None  # output that a fenced node held back is never sent [PROTOCOL 1.6]
        release_waiters(self, conn)
        if conn.session and self.sessions.get(conn.session) is conn:
            del self.sessions[conn.session]
        if conn.is_link:
            self.closed_conns.insert(0, conn)  # not behind the clients of a failed switch
        else:
            self.closed_conns.append(conn)

    def call_closed(self) -> None:
        """Report closed connections to the core, outside of any other call; bounded per iteration."""
        conn: LoopConnection
        while self.closed_conns and self.close_reports_left > 0:
            closed_conns = self.closed_conns[: self.close_reports_left]
            self.closed_conns = self.closed_conns[self.close_reports_left :]
            self.close_reports_left -= len(closed_conns)
            for conn in closed_conns:
                self.remove_conn(conn)
                peer = conn.peer
                if conn.is_link and peer is not None and peer.conn is conn:
                    peer.conn = None
                    if not peer.dead:
                        peer.link.disconnected()
                        self.handler.link_lost(peer)
                self.handler.closed(conn, conn.why)
                release_pending(self, conn)

    def remove_conn(self, conn: LoopConnection) -> None:
        """Remove a connection; the last one takes its slot."""
        last: LoopConnection = self.conns.pop()
        if last is not conn:
            self.conns[conn.slot] = last
            last.slot = conn.slot

    def stop_reading(self) -> None:
        """Stop reading clients permanently; buffered input is parsed and answered."""
        self.reading = False

    def owes(self, conn: LoopConnection) -> bool:
        """Return whether a client's input is not completely processed or answered."""
        return bool(conn.ack_queue) or conn.ready or (conn.parked & ~PARK_OUTPUT) != 0

    def lingers(self) -> bool:
        """Return whether output waits for sockets, or closed sockets for their clients."""
        return self.dirty_first is not None or bool(self.closed_conns) or any(conn.fd >= 0 for conn in self.lingering)

    def bound_held_bytes(self, bytes_max: int) -> None:
        """Call ``Handler.memory_exceeded`` in iterations that end with more bytes held for clients."""
        self.held_bytes_max = bytes_max

    def largest_holders(self, count: int) -> list[LoopConnection]:
        """Return the clients with the most held bytes, the largest first."""
        conn: LoopConnection
        shares: list[tuple[int, int]] = []
        least: cython.Py_ssize_t = max(4096, self.held_bytes // (2 * len(self.conns) + 1))
        for conn in self.conns:
            if not conn.is_link and not conn.closed and share_of(conn) > least:  # at least half of the mean
                shares.append((share_of(conn), conn.slot))
        return [self.conns[slot] for _, slot in heapq.nlargest(count, shares)]

    def join_class(self, conn: LoopConnection, number: int) -> None:
        """Set the bit on Routes for decisions of the connection's class, -1 for none; called by ``Handler.authorize``.

        It is valid until ``void_verdicts``. Two classes in use never have the same number in one epoch.
        """
        if not -1 <= number < 64:
            raise ValueError(f"class number {number} is outside -1..63")
        bit: cython.ulonglong = 1
        conn.rights_bit = bit << number if number >= 0 else 0

    def forget_verdicts(self, conn: LoopConnection) -> None:
        """Call ``Handler.authorize`` again for each topic of a connection whose permissions changed."""
        conn.rights_bit = 0
        conn.permissions = None
        self.numbers += 1
        conn.authz_key = self.numbers
        conn.last_version = -1

    def judge_pushes_to(self, conn: LoopConnection) -> None:
        """Call ``Handler.may_receive`` for each message that a partition pushes to a connection, until it ends."""
        conn.judge_pushes = True

    def void_verdicts(self, rights_epoch: int) -> None:
        """Invalidate all earlier decisions of ``authorize``; epochs increase."""
        if rights_epoch <= self.rights_epoch:
            raise ValueError(f"rights epoch {rights_epoch} is not above the current {self.rights_epoch}")
        self.rights_epoch = rights_epoch
        self.routes_version += 1  # connections cache the Route, or the refusal, of their last topic
