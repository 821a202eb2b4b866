"""``BrokerLoop``: the sans-IO engine of the loop, and everything the edge core may ask of it.

Takes bytes and the time, gives bytes. ``edge/loop/loop.py`` puts sockets around it; tests and the simulation call
``begin_turn``, ``feed``, ``end_turn`` and ``take_output`` themselves. Nothing here reads a clock or rolls dice.
Its methods stand in chapters, each on the one before: connections, publications, peering, and here the turns.
Decision: docs/adr/0008-trio-with-a-compiled-loop.md.
"""

from typing import TYPE_CHECKING

import cython

from edge.loop.options import HotLimits
from edge.loop.peering import Peering
from edge.loop.state import HotState, LoopConnection

if not cython.compiled:
    from edge.loop.ack_rows import flush_rows
    from edge.loop.batches import flush_batches
    from edge.loop.excess import owes_too_long
    from edge.loop.layout import BY_PEER, KEEP_ALIVE_TIMEOUT, RECEIVE_MAXIMUM_EXCEEDED, UNSPECIFIED_ERROR
    from edge.loop.outboxes import pump_outboxes
    from edge.loop.output import end_lag, mark_dirty, unpark
    from edge.loop.state import PARK_HANDLER, PARK_RATE

if TYPE_CHECKING:
    from edge.loop.handler import Handler

__all__ = ["BrokerLoop"]

PACED_EVERY_NS = 10_000_000
PACED_BURST_NS = 500_000_000  # half a second's worth is free again: not woken for every message
PACKET_GRACE_NS = 10_000_000_000  # a network may lose what is sent, and send it again, for so long
CLOSINGS_MAX = 50  # ended connections that the core is told of in a turn: a few milliseconds


class BrokerLoop(Peering):
    """All connections, routes and peers of one edge process.

    Attributes:
        now_ns: Time of the current turn, CLOCK_BOOTTIME; what ``set_lease`` is compared with.
        turn_end_ns: When ``Handler.turn_end`` wants to be called again, 0 (at first): at the end of every turn.
        authorizing: Ask ``Handler.authorize`` on a connection's first use of a topic; off by default.
        ledger: AckSink or None; ledger_offset_ns: UTC minus the loop's clock, for its records.
    """

    def __init__(self, handler: "Handler", incarnation: int, limits: HotLimits) -> None:
        HotState.__init__(self, handler, incarnation, limits)
        self.sweep_left = 0  # connections that the sweep under way has not looked at

    def begin_turn(self, now_ns: cython.longlong) -> None:
        """Set the time, and parse on where resumed or released connections stopped."""
        conn: LoopConnection
        self.now_ns = now_ns
        self.leased = now_ns < self.lease_until_ns
        self.turn_bytes = 0
        self.turns += 1
        if 0 < self.fence_ns <= now_ns:
            self.end_fence(now_ns)
        if self.high:
            end_lag(self)
        if self.roomy:
            roomy = self.roomy
            self.roomy = []
            for conn in roomy:
                if not conn.closed:
                    self.handler.has_room(conn)
        if self.paced and now_ns - self.paced_at_ns >= PACED_EVERY_NS:
            self.read_paced()
        if self.ready:
            ready = self.ready
            self.ready = []
            for conn in ready:
                if self.turn_bytes > self.turn_bytes_max:
                    self.ready.append(conn)
                    continue
                conn.ready = False
                if not conn.closed and conn.parked == 0:
                    self.parse_kept(conn)
                    at_end = not (conn.hearing or conn.closed or conn.ready)
                    if at_end and (conn.parked == 0 or not conn.partial) and not conn.pipelining:
                        self.forget(conn, BY_PEER)
                mark_dirty(self, conn)
            # Half of a turn is for what comes now: else each takes one event, and others wait for seconds behind
            # clients whose every message has thousands of copies.
            self.turn_bytes = min(self.turn_bytes, self.turn_bytes_max // 2)

    def read_paced(self) -> None:
        """Go on with the clients whose publish rate has recovered."""
        conn: LoopConnection
        used_ns: cython.longlong
        still: list[LoopConnection] = []
        self.paced_at_ns = self.now_ns
        for conn in self.paced:
            used_ns = max(conn.paid_ns, conn.bytes_paid_ns, conn.asked_paid_ns)
            if conn.purse is not None:
                used_ns = max(used_ns, conn.purse.paid_ns, conn.purse.bytes_paid_ns, conn.purse.asked_paid_ns)
            if conn.closed or used_ns <= self.now_ns + PACED_BURST_NS:
                unpark(self, conn, PARK_RATE)
            else:
                still.append(conn)
        self.paced = still

    def end_turn(self, now_ns: cython.longlong) -> None:
        """Batches become frames, ``Handler.turn_end`` is called; afterwards ``take_output`` of ``dirty_conns``."""
        self.now_ns = now_ns
        self.leased = now_ns < self.lease_until_ns
        self.closings = CLOSINGS_MAX
        if self.gone:
            self.call_closed()
        if self.held_bytes > self.held_bytes_max:
            self.handler.memory_exceeded()
        if now_ns >= self.turn_end_ns:
            self.handler.turn_end(now_ns)
        if self.gone:
            self.call_closed()
        if self.pumping and self.leased:
            pump_outboxes(self)
        if self.busy_peers:
            flush_batches(self)
        if self.ledger_count:
            flush_rows(self)  # last: before what it records leaves

    def wants_turn(self) -> bool:
        """Whether ``begin_turn`` would find something to do without new bytes."""
        return bool(self.ready or self.gone or self.roomy)

    def sweep(self, now_ns: int) -> None:
        """Look at every connection now, whatever it takes; see ``sweep_some``."""
        self.begin_sweep()
        self.sweep_some(now_ns, len(self.conns))

    def begin_sweep(self) -> None:
        """Have ``sweep_some`` look at every connection that there is; once a second or so."""
        self.sweep_left = len(self.conns)

    def sweep_some(self, now_ns: cython.longlong, count: cython.Py_ssize_t) -> None:
        """Look at some connections that the sweep has not seen yet, ``sweep_left`` of them in all.

        Reports silent clients and slow packets (``Handler.error`` 0x8D), no CONNECT (0x80), owed PUBRELs (0x93). It
        goes from the last one to the first, and the last one takes the place of one that goes: so one that moves was
        seen, and none is left out.
        """
        conn: LoopConnection
        conns: list[LoopConnection] = self.conns
        self.now_ns = now_ns
        self.sweep_left = min(self.sweep_left, len(conns))
        while self.sweep_left > 0 and count > 0:
            count -= 1
            self.sweep_left -= 1
            conn = conns[self.sweep_left]
            if conn.excess and not conn.closed and owes_too_long(self, conn, now_ns):
                conn.excess = False  # reported once
                conn.parked |= PARK_HANDLER
                self.handler.error(conn, RECEIVE_MAXIMUM_EXCEEDED)
            elif conn.parked != 0 and conn.version != 0:
                conn.heard_ns = conn.packet_begun_ns = now_ns  # it is we who do not listen
            elif conn.partial and conn.version != 0 and not conn.closed and self.is_too_slow(conn, now_ns):
                self.slow_packets += 1
                conn.parked |= PARK_HANDLER
                self.handler.error(conn, KEEP_ALIVE_TIMEOUT)
            elif 0 < conn.connect_ns < now_ns - conn.heard_ns and conn.version == 0 and not conn.closed:
                conn.connect_ns = conn.silence_ns = 0  # reported once
                conn.parked |= PARK_HANDLER
                self.handler.error(conn, UNSPECIFIED_ERROR)
            elif conn.silence_ns and now_ns - conn.heard_ns > conn.silence_ns and not conn.closed:
                conn.silence_ns = 0  # reported once
                conn.parked |= PARK_HANDLER
                self.handler.error(conn, KEEP_ALIVE_TIMEOUT if conn.version else UNSPECIFIED_ERROR)

    def is_too_slow(self, conn: LoopConnection, now_ns: cython.longlong) -> cython.bint:
        """Whether the packet that a client has begun should have come whole by now, or more of it."""
        age_ns: cython.longlong = now_ns - conn.packet_begun_ns
        if self.packet_timeout_ns == 0 or age_ns < PACKET_GRACE_NS or conn.ready or not self.reading:
            return False
        return age_ns > self.packet_timeout_ns or len(conn.partial) < self.packet_rate_min * (age_ns // 1_000_000_000)

    def set_lease(self, until_ns: int) -> None:
        """The lease runs out at ``until_ns`` on CLOCK_BOOTTIME; 0: none. Renewing it ends the holding of acks."""
        conn: LoopConnection
        was: cython.bint = self.leased
        self.lease_until_ns = until_ns
        self.leased = self.now_ns < until_ns
        if self.leased and not was:
            for conn in self.conns:
                if conn.has_acks:
                    mark_dirty(self, conn)

    def set_fence(self, at_ns: int) -> None:
        """From that time on clients are neither read nor written before ``Handler.fence_over`` was called; 0: never."""
        self.fence_ns = at_ns

    def end_fence(self, now_ns: cython.longlong) -> None:
        """Have the core look at its lease, outside of any other call, before bytes of clients count."""
        self.fence_ns = 0
        self.now_ns = now_ns
        self.leased = now_ns < self.lease_until_ns
        self.handler.fence_over(now_ns)

    @property
    def has_lease(self) -> bool:
        """Whether ``now_ns`` is before the end of the lease."""
        return self.leased

    def counters(self) -> dict[str, int]:
        """Return all counters and gauges by name; ``dropped_*`` carry their reason."""
        figures = self.counted()
        figures["connections"] = len(self.conns)
        figures["routes"] = len(self.routes)
        figures["outbox_bytes"] = self.outbox_bytes
        figures["held_bytes"] = self.held_bytes
        figures["read_ahead_bytes"] = self.read_ahead_bytes
        figures["output_high"] = len(self.high)
        return figures
