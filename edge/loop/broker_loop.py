"""``BrokerLoop``: the sans-IO core of the loop, and the interface of the edge core to it.

It takes bytes and the time, and returns bytes. ``edge/loop/loop.py`` adds sockets; tests and the simulation call
``begin_turn``, ``feed``, ``end_turn`` and ``take_output`` themselves. It reads no clock and no random numbers.
Its methods are divided into base classes, each built on the one before: connections, publications, peering. This class
adds the iterations.
Decision: docs/adr/0008-trio-with-a-compiled-loop.md.
"""

from typing import TYPE_CHECKING

import cython

from edge.loop.options import HotLimits
from edge.loop.peering import Peering
from edge.loop.state import LoopConnection, LoopState

if not cython.compiled:
    from edge.loop.ack_rows import flush_rows
    from edge.loop.batches import flush_batches
    from edge.loop.excess import update_excess_timer
    from edge.loop.layout import BY_PEER, KEEP_ALIVE_TIMEOUT, RECEIVE_MAXIMUM_EXCEEDED, UNSPECIFIED_ERROR
    from edge.loop.outboxes import pump_outboxes
    from edge.loop.output import end_lag, mark_dirty, unpark
    from edge.loop.state import PARK_HANDLER, PARK_RATE

if TYPE_CHECKING:
    from edge.loop.handler import Handler

__all__ = ["BrokerLoop"]

PACED_INTERVAL_NS = 10_000_000
PACED_BURST_NS = 500_000_000  # resumed when half a second's worth is available again, not for every message
PACKET_GRACE_NS = 10_000_000_000  # a network may lose and retransmit packets for so long
CLOSINGS_MAX = 50  # closed connections reported to the core per iteration: a few milliseconds


class BrokerLoop(Peering):
    """All connections, routes and peers of one edge process.

    Attributes:
        now_ns: Time of the current iteration, CLOCK_BOOTTIME; compared with ``set_lease``.
        turn_end_ns: Time of the next ``Handler.turn_end`` call, 0 (at first): at the end of every iteration.
        authorizing: Call ``Handler.authorize`` on a connection's first use of a topic; off by default.
        ledger: AckSink or None; ledger_offset_ns: UTC minus the loop's clock, for its records.
    """

    def __init__(self, handler: "Handler", incarnation: int, limits: HotLimits) -> None:
        LoopState.__init__(self, handler, incarnation, limits)
        self.sweep_left = 0  # connections that the running sweep has not checked

    def begin_turn(self, now_ns: cython.longlong) -> None:
        """Set the time, and continue parsing resumed or released connections."""
        conn: LoopConnection
        self.now_ns = now_ns
        self.leased = now_ns < self.lease_until_ns
        self.iteration_bytes = 0
        self.turns += 1
        if 0 < self.fence_ns <= now_ns:
            self.end_fence(now_ns)
        if self.high:
            end_lag(self)
        if self.conns_with_capacity:
            conns_with_capacity = self.conns_with_capacity
            self.conns_with_capacity = []
            for conn in conns_with_capacity:
                if not conn.closed:
                    self.handler.has_room(conn)
        if self.paced and now_ns - self.paced_at_ns >= PACED_INTERVAL_NS:
            self.read_paced()
        if self.ready:
            ready = self.ready
            self.ready = []
            for conn in ready:
                if self.iteration_bytes > self.iteration_bytes_max:
                    self.ready.append(conn)
                    continue
                conn.ready = False
                if not conn.closed and conn.parked == 0:
                    self.parse_buffered(conn)
                    at_end = not (conn.hearing or conn.closed or conn.ready)
                    if at_end and (conn.parked == 0 or not conn.partial) and not conn.pipelining:
                        self.forget(conn, BY_PEER)
                mark_dirty(self, conn)
            # Half of the byte budget is for new input. Otherwise each connection handles one event, and others wait
            # seconds behind clients whose messages have thousands of copies.
            self.iteration_bytes = min(self.iteration_bytes, self.iteration_bytes_max // 2)

    def read_paced(self) -> None:
        """Resume clients whose publish rate has recovered."""
        conn: LoopConnection
        used_ns: cython.longlong
        still: list[LoopConnection] = []
        self.paced_at_ns = self.now_ns
        for conn in self.paced:
            used_ns = max(conn.next_message_ns, conn.next_byte_ns, conn.next_filter_ns)
            if conn.purse is not None:
                used_ns = max(used_ns, conn.purse.next_message_ns, conn.purse.next_byte_ns, conn.purse.next_filter_ns)
            if conn.closed or used_ns <= self.now_ns + PACED_BURST_NS:
                unpark(self, conn, PARK_RATE)
            else:
                still.append(conn)
        self.paced = still

    def end_turn(self, now_ns: cython.longlong) -> None:
        """Make frames of batches and call ``Handler.turn_end``; then call ``take_output`` for ``dirty_conns``."""
        self.now_ns = now_ns
        self.leased = now_ns < self.lease_until_ns
        self.close_reports_left = CLOSINGS_MAX
        if self.closed_conns:
            self.call_closed()
        if self.held_bytes > self.held_bytes_max:
            self.handler.memory_exceeded()
        if now_ns >= self.turn_end_ns:
            self.handler.turn_end(now_ns)
        if self.closed_conns:
            self.call_closed()
        if self.pumping and self.leased:
            pump_outboxes(self)
        if self.busy_peers:
            flush_batches(self)
        if self.ledger_count:
            flush_rows(self)  # last: before any of the recorded acknowledgements is sent

    def wants_turn(self) -> bool:
        """Return whether ``begin_turn`` has work without new bytes."""
        return bool(self.ready or self.closed_conns or self.conns_with_capacity)

    def sweep(self, now_ns: int) -> None:
        """Check every connection now, regardless of the cost; see ``sweep_some``."""
        self.begin_sweep()
        self.sweep_some(now_ns, len(self.conns))

    def begin_sweep(self) -> None:
        """Start a sweep over all current connections; once per second or so."""
        self.sweep_left = len(self.conns)

    def sweep_some(self, now_ns: cython.longlong, count: cython.Py_ssize_t) -> None:
        """Check the next connections of a sweep; ``sweep_left`` remain in all.

        Reports silent clients and slow packets (``Handler.error`` 0x8D), a missing CONNECT (0x80), overdue PUBRELs
        (0x93). The sweep runs from the last slot to the first. A removed connection is replaced by the last one, which
        was already checked: so none is missed.
        """
        conn: LoopConnection
        conns: list[LoopConnection] = self.conns
        self.now_ns = now_ns
        self.sweep_left = min(self.sweep_left, len(conns))
        while self.sweep_left > 0 and count > 0:
            count -= 1
            self.sweep_left -= 1
            conn = conns[self.sweep_left]
            if conn.excess and not conn.closed and update_excess_timer(self, conn, now_ns):
                conn.excess = False  # reported once
                conn.parked |= PARK_HANDLER
                self.handler.error(conn, RECEIVE_MAXIMUM_EXCEEDED)
            elif conn.parked != 0 and conn.version != 0:
                conn.heard_ns = conn.packet_begun_ns = now_ns  # reading is paused by the broker; not client silence
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
        """Return whether a client's incomplete packet arrives too slowly."""
        age_ns: cython.longlong = now_ns - conn.packet_begun_ns
        if self.packet_timeout_ns == 0 or age_ns < PACKET_GRACE_NS or conn.ready or not self.reading:
            return False
        return age_ns > self.packet_timeout_ns or len(conn.partial) < self.packet_rate_min * (age_ns // 1_000_000_000)

    def set_lease(self, until_ns: int) -> None:
        """Set the end of the lease on CLOCK_BOOTTIME; 0: none. A renewal sends the held acknowledgements."""
        conn: LoopConnection
        was: cython.bint = self.leased
        self.lease_until_ns = until_ns
        self.leased = self.now_ns < until_ns
        if self.leased and not was:
            for conn in self.conns:
                if conn.has_acks:
                    mark_dirty(self, conn)

    def set_fence(self, at_ns: int) -> None:
        """Stop reading and writing clients at that time, until ``Handler.fence_over`` was called; 0: never."""
        self.fence_ns = at_ns

    def end_fence(self, now_ns: cython.longlong) -> None:
        """Let the core check its lease, outside of any other call, before it handles bytes of clients."""
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
        counters = self.counted()
        counters["connections"] = len(self.conns)
        counters["routes"] = len(self.routes)
        counters["outbox_bytes"] = self.outbox_bytes
        counters["held_bytes"] = self.held_bytes
        counters["read_ahead_bytes"] = self.read_ahead_bytes
        counters["output_high"] = len(self.high)
        return counters
