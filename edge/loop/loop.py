# ruff: noqa: F821
"""Iterations over the sockets of ``BrokerLoop``; trio's own epoll is a member of their epoll set.

An iteration waits, receives once per readable connection, parses, then sends once per connection with output. Its work
is limited; the rest of the same event array follows in the next iteration, or its tail would starve. It decides nothing
about MQTT. ``edge/loop/host.py`` integrates it with trio. See docs/adr/0008-trio-with-a-compiled-loop.md.
"""

import os
import ssl
import time
from typing import TYPE_CHECKING, Any

import cython

from edge.loop.broker_loop import BrokerLoop
from edge.loop.pacing import Pacing
from edge.loop.sockets import Sockets
from edge.loop.state import LoopConnection

if not cython.compiled:
    from edge.loop.descriptors import boot_ns, bytes_waiting
    from edge.loop.durations import count_durations
    from edge.loop.memory import count_held
    from edge.loop.output import mark_dirty
    from edge.loop.pacing import after_iteration, gap_ns
    from edge.loop.parked_input import may_read_ahead
    from edge.loop.parse import park_unread, parse
    from edge.loop.sockets import (
        EPOLLERR,
        EPOLLHUP,
        EPOLLIN,
        EPOLLOUT,
        RECEIVE_BYTES,
        RECEIVE_BYTES_MAX,
        TLS_RECORD_BYTES,
    )
    from edge.loop.state import UNREGISTERED

if not cython.compiled and TYPE_CHECKING:  # the C names of linux.pxd and libc
    from edge.loop.linux import (
        CLOCK_BOOTTIME,
        EAGAIN,
        EINTR,
        MSG_DONTWAIT,
        TFD_CLOEXEC,
        TFD_NONBLOCK,
        TFD_TIMER_ABSTIME,
        epoll_wait,
        errno,
        itimerspec,
        memcpy,
        only_thread,
        read,
        recv,
        timerfd_create,
        timerfd_settime,
        wait_ns,
    )

__all__ = ["Loop"]

if not cython.compiled:  # compiled, these are C constants: loop.pxd
    TLS_OVERHEAD_BYTES = 22  # of a TLS 1.3 record: header, content type, tag
    IDLE_NS = 5_000
    LAG_CHECK_NS = 20_000_000
    SWEEP_NS = 1_000_000_000
    OVERDUE_NS = 2_000_000_000  # a sweep that waited so long for an iteration that read all input continues without it
    SWEPT_MAX = 256  # connections in a slice of the sweep, some 50 us: each has its own memory

EVENTS_MAX = 512


class Loop(Sockets):
    """The event loop of one edge process.

    Attributes:
        kicked: Set by ``kick``: a trio task was woken, trio must run.
    """

    def __init__(self, hot: BrokerLoop, trio_fd: int = -1) -> None:
        super().__init__(hot)
        self.trio_fd = trio_fd
        self.kicked = False
        self.polled: list[tuple[int, int]] = []
        if not cython.compiled:
            self.events: Any = None  # in C an array of epoll_event
        self.event_at = 0
        self.event_count = 0
        self.iteration_ns_max = hot.limits.iteration_ns_max
        self.longest_ns = 0  # longest iteration since the shell's reset: from the end of its wait to its last send
        self.longest_own_ns = 0  # the same for iterations without client packets
        self.swept_ns = boot_ns()
        self.woke_ns = 0  # end of the last wait, 0 if it did not wait
        self.iteration_end_ns = 0  # end of the latest iteration, before its output was sent
        self.blocked_ns = 0
        self.idle = False  # the last wait blocked
        self.pacing = Pacing(hot.limits.pacing_ns)
        hot.direct = cython.compiled
        self.timer_fd = -1
        self.armed_ns = 0
        if cython.compiled:  # pragma: no cover
            self.timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC)
            self.epoll.register(self.timer_fd, EPOLLIN)
        if trio_fd >= 0:
            self.epoll.register(trio_fd, EPOLLIN)

    # -- for the core and its shell

    def kick(self) -> None:
        """Return to trio after this iteration: a Handler call scheduled trio work."""
        self.kicked = True

    def pacing_switched_on(self) -> int:
        """Return how often pacing was enabled."""
        return self.pacing.switched_on

    def patience_s(self) -> float:
        """Return how long a nested host may wait for ``epoll_fd`` before the next iteration."""
        hot = self.hot
        if (
            hot.ready
            or hot.closed_conns
            or hot.conns_with_capacity
            or hot.dirty_first is not None
            or (hot.busy_peers and hot.leased)
        ):
            return 0.0
        if self.undecrypted or self.event_at < self.event_count or hot.sweep_left > 0:
            return 0.0
        patience_ns = LAG_CHECK_NS if hot.high or hot.paced else SWEEP_NS
        if hot.turn_end_ns > 0:
            patience_ns = min(patience_ns, max(0, hot.turn_end_ns - boot_ns()))
        return patience_ns / 1e9

    def read_on(self, conn: LoopConnection) -> None:
        """Resume reading the first bytes of a connection after ``FirstBytes.read`` returned WAITS."""
        if conn.fd >= 0 and conn.tls_state == 1:
            conn.heard_ns = boot_ns()  # the client did not cause the wait
            self.arm(conn, EPOLLIN)

    def close(self) -> None:
        """Close all connections at once."""
        self.close_sockets()
        if self.timer_fd >= 0:
            os.close(self.timer_fd)
            self.timer_fd = -1

    # -- iterations

    def run(self, timeout_s: cython.double) -> cython.bint:
        """Run iterations until trio's epoll is readable, ``kick`` was called or the timeout expired; at least one.

        Args:
            timeout_s: 0 for one iteration without waiting.
        Returns:
            Whether trio must be woken from a wait that it has already computed.
        """
        deadline: cython.longlong = boot_ns() + cython.cast(cython.longlong, min(timeout_s, 86_400.0) * 1e9)
        while True:
            if self.one_turn(deadline if timeout_s > 0 else 0):
                return False
            if self.kicked:
                self.kicked = False
                return timeout_s > 0
            if timeout_s <= 0:
                return False
            if self.iteration_end_ns >= deadline:
                return True

    def one_turn(self, until_ns: cython.longlong) -> cython.bint:
        """Wait (until a time, 0: not at all), read, parse, send; True if trio's epoll became readable."""
        hot: BrokerLoop = self.hot
        trio_ready: cython.bint = False
        fd: cython.int
        events: cython.uint
        conn: LoopConnection
        polled_now: cython.bint = self.event_at >= self.event_count
        if polled_now:
            self.wait_for_events(until_ns)
        began: cython.longlong = self.woke_ns if self.woke_ns > 0 else boot_ns()
        start: cython.longlong = began
        self.woke_ns = 0
        packets: cython.ulonglong = hot.packets_in
        written: cython.ulonglong = hot.publish_out_qos0 + hot.publish_out_qos1 + hot.publish_out_qos2
        hot.begin_turn(start)
        self.handshakes = 0
        if self.undecrypted:
            undecrypted = self.undecrypted
            self.undecrypted = []
            for conn in undecrypted:
                self.read(conn)
        while self.event_at < self.event_count:
            if cython.compiled:  # pragma: no cover
                fd = self.events[self.event_at].data.fd
                events = self.events[self.event_at].events
            else:
                fd, events = self.polled[self.event_at]
            self.event_at += 1
            if fd == self.trio_fd:
                trio_ready = True
            elif fd == self.timer_fd:
                self.clear_timer()
            else:
                self.conn_event(fd, events)
            if hot.iteration_bytes > hot.iteration_bytes_max:
                break
            if self.event_at & 15 == 0 and boot_ns() - start > self.iteration_ns_max:
                break
        start = boot_ns()
        self.iteration_end_ns = start
        hot.end_turn(start)
        self.flush()
        if start - self.swept_ns >= SWEEP_NS:
            self.sweep(start)
        # Uses the time of this iteration's poll, after all its input was read. Otherwise unread input in the kernel, of
        # a stopped or starved process, would count as client silence.
        if hot.sweep_left > 0 and ((polled_now and self.has_read_all()) or start - self.swept_ns > OVERDUE_NS):
            hot.sweep_some(began, SWEPT_MAX)
        after_iteration(self.pacing, start, hot.packets_in, self.blocked_ns)
        start = boot_ns() - began
        self.longest_ns = max(self.longest_ns, start)
        written = hot.publish_out_qos0 + hot.publish_out_qos1 + hot.publish_out_qos2 - written
        if written > 0:
            count_durations(hot.delivered, start, written)
        if hot.packets_in == packets:
            self.longest_own_ns = max(self.longest_own_ns, start)
        return trio_ready

    def wait_for_events(self, until_ns: cython.longlong) -> cython.bint:
        """Fill the event array; blocks, until a time at most, only if there is no other work."""
        hot: BrokerLoop = self.hot
        before: cython.longlong = 0
        blocks: cython.bint
        gap: cython.longlong = gap_ns(self.pacing)
        if gap > 0 and until_ns > 0 and not hot.ready and not hot.closed_conns:
            before = boot_ns()
            if cython.compiled:  # pragma: no cover
                with cython.nogil:
                    wait_ns(self.trio_fd, gap)
            else:
                time.sleep(gap / 1e9)
            self.blocked_ns += boot_ns() - before
        blocks = until_ns > 0 and not (
            hot.ready
            or hot.closed_conns
            or hot.conns_with_capacity
            or hot.dirty_first is not None
            or (hot.busy_peers and hot.leased)
            or self.undecrypted
            or self.kicked
            or hot.sweep_left > 0
        )
        if blocks:
            until_ns = min(until_ns, self.swept_ns + SWEEP_NS)
            if hot.turn_end_ns > 0:
                until_ns = min(until_ns, hot.turn_end_ns)
            if hot.high or hot.paced:
                until_ns = min(until_ns, boot_ns() + LAG_CHECK_NS)
        self.event_at = 0
        if cython.compiled:  # pragma: no cover
            self.event_count = 0
            if blocks:
                before = boot_ns()
            if not blocks or not self.idle or before >= until_ns:  # a busy core never blocks, but polls
                # The GIL is kept: a busy worker thread would return it milliseconds later.
                self.event_count = epoll_wait(self.epoll_fd, self.events, 512, 0)
                self.idle = self.event_count == 0
                if blocks:
                    before = boot_ns()
            if self.event_count == 0 and blocks:
                if before >= until_ns:
                    return True
                if self.armed_ns > until_ns or self.armed_ns <= before:
                    self.set_timer(until_ns)
                if only_thread():  # no thread can need the GIL, and switching it takes longer than parsing
                    self.event_count = epoll_wait(self.epoll_fd, self.events, 512, -1)
                else:
                    with cython.nogil:
                        self.event_count = epoll_wait(self.epoll_fd, self.events, 512, -1)
                self.woke_ns = boot_ns()
                self.blocked_ns += self.woke_ns - before
                self.idle = self.woke_ns - before > IDLE_NS  # mostly idle: skip the nonblocking poll next time
            if self.event_count < 0:
                self.event_count = 0
        else:
            before = boot_ns()
            self.polled = self.epoll.poll(max(0, until_ns - before) / 1e9 if blocks else 0, EVENTS_MAX)
            self.event_count = len(self.polled)
            self.blocked_ns += boot_ns() - before
        return True

    def set_timer(self, at_ns: cython.longlong) -> None:
        """Set ``timer_fd``: a persistent timer costs less than a timeout for every wait."""
        self.armed_ns = at_ns
        if cython.compiled:  # pragma: no cover
            timer: itimerspec
            timer.it_interval.tv_sec = 0
            timer.it_interval.tv_nsec = 0
            timer.it_value.tv_sec = at_ns // 1_000_000_000
            timer.it_value.tv_nsec = at_ns % 1_000_000_000
            timerfd_settime(self.timer_fd, TFD_TIMER_ABSTIME, cython.address(timer), cython.NULL)

    def has_read_all(self) -> cython.bint:
        """Return whether the last poll found all ready sockets, and all of them were read."""
        return self.event_at >= self.event_count and self.event_count < EVENTS_MAX and not self.undecrypted

    def clear_timer(self) -> None:
        """Consume the timer event; the next wait sets the timer again."""
        self.armed_ns = 0
        if cython.compiled:  # pragma: no cover
            count: cython.ulonglong = 0
            read(self.timer_fd, cython.address(count), 8)

    def conn_event(self, fd: cython.int, events: cython.uint) -> None:
        """Handle the epoll events of one descriptor."""
        conn: LoopConnection | None
        conn = self.conns[fd] if fd < len(self.conns) else None
        if conn is None:
            if fd in self.listeners:
                self.accept(fd)
            return
        if 0 < conn.tls_state < 4:
            self.handshake(conn)
            return
        if events & EPOLLOUT:
            self.check_fence()
            self.flush_conn(conn, True)
        if conn.closed:
            self.discard(conn)
        elif events & EPOLLIN and (conn.parked == 0 or may_read_ahead(self.hot, conn)):
            self.read(conn)
        elif events & (EPOLLERR | EPOLLHUP):
            self.hot.end_of_file(conn)
            if not conn.closed:  # it ends after its last packets are answered; epoll would report it endlessly
                self.epoll.unregister(conn.fd)
                conn.armed = UNREGISTERED
        elif events & EPOLLIN:  # parked with more input: that stays in the kernel
            self.arm(conn, conn.armed & ~EPOLLIN)

    def sweep(self, now_ns: cython.longlong) -> None:
        """Once per second: start a sweep over sockets; silent clients follow in slices between iterations."""
        self.swept_ns = now_ns - now_ns % SWEEP_NS  # of the host's clock, with heartbeats: one wakeup for both
        self.hot.begin_sweep()
        self.sweep_sockets(now_ns)

    # -- reading

    def read(self, conn: LoopConnection) -> None:
        """Receive once, then parse; not if the connection is parked or its destinations are full."""
        hot: BrokerLoop = self.hot
        kept: cython.Py_ssize_t
        wanted: cython.Py_ssize_t = RECEIVE_BYTES
        count: cython.Py_ssize_t
        if conn.closed or conn.ready or conn.fd < 0 or (conn.parked != 0 and not may_read_ahead(hot, conn)):
            return
        if not conn.is_link and conn.parked == 0:
            if not hot.reading:
                mark_dirty(hot, conn)  # the flush disables its read events
                return
            if park_unread(hot, conn):
                return
        if conn.tls is not None:
            self.read_tls(conn)
            return
        kept = len(conn.partial) if not conn.is_link and conn.filter is None and conn.parked == 0 else 0
        if conn.parked == 0 and conn.needed > kept + wanted:
            wanted = min(conn.needed - kept, RECEIVE_BYTES_MAX)
        if kept + wanted > self.capacity:
            self.grow(kept + wanted)
        if cython.compiled:  # pragma: no cover
            count = recv(conn.fd, self.data + kept, wanted, MSG_DONTWAIT)
            if count < 0:
                if errno in (EAGAIN, EINTR):
                    return
                count = 0
        else:
            try:
                count = os.readv(conn.fd, [self.view[kept : kept + wanted]])
            except BlockingIOError:
                return
            except OSError:
                count = 0
        if count == 0:
            self.ended(conn)
            return
        self.take_input(conn, kept, count)

    def ended(self, conn: LoopConnection) -> None:
        """Stop reading: a client closed its direction. Packets received before may still be buffered."""
        self.hot.end_of_file(conn)
        if not conn.closed:
            self.arm(conn, conn.armed & ~EPOLLIN)

    def grow(self, count: cython.Py_ssize_t) -> None:
        """Grow the buffer for a packet that is larger."""
        self.view.release()
        self.capacity = 2 * count
        self.input = bytearray(self.capacity)
        self.view = memoryview(self.input)
        if cython.compiled:  # pragma: no cover
            self.data = self.input

    def take_input(self, conn: LoopConnection, kept: cython.Py_ssize_t, count: cython.Py_ssize_t) -> None:
        """Parse the received bytes; ``kept`` bytes before them are reserved for the connection's buffered ones."""
        hot: BrokerLoop = self.hot
        total: cython.Py_ssize_t = kept + count
        consumed: cython.Py_ssize_t
        hot.now_ns = boot_ns()  # the lease is compared with the arrival of the packet [PROTOCOL 1.5]
        hot.leased = hot.now_ns < hot.lease_until_ns
        if 0 < hot.fence_ns <= hot.now_ns:  # the process was stopped since the iteration began
            hot.end_fence(hot.now_ns)
            if conn.closed:
                return
        if conn.is_link or conn.filter is not None or conn.parked != 0:
            hot.feed(conn, bytes(self.view[kept:total]))
            return
        if conn.version != 0:  # before CONNECT the timeout runs from accept, regardless of input
            conn.heard_ns = hot.now_ns
        hot.bytes_in += count
        if cython.compiled:  # pragma: no cover
            if kept > 0:
                memcpy(self.data, cython.cast(cython.p_uchar, conn.partial), kept)
            if total < conn.needed:
                conn.partial = self.data[:total]
                count_held(hot, conn)
                return
            conn.partial = b""
            consumed = parse(hot, conn, self.data, 0, total)
            hot.parsed(conn, consumed, kept == 0)
            if consumed < total and not conn.closed:
                conn.partial = self.data[consumed:total]
                if conn.parked != 0:
                    hot.answer_parked_pings(conn)
                count_held(hot, conn)
            elif conn.held_bytes > 0:
                count_held(hot, conn)
        else:
            data = conn.partial + bytes(self.view[kept:total])
            conn.partial = data
            if total < conn.needed:
                count_held(hot, conn)
                return
            conn.partial = b""
            consumed = parse(hot, conn, data, 0, total)
            hot.parsed(conn, consumed, kept == 0)
            if consumed < total and not conn.closed:
                conn.partial = data[consumed:]
                if conn.parked != 0:
                    hot.answer_parked_pings(conn)
            count_held(hot, conn)

    def discard(self, conn: LoopConnection) -> None:
        """Read and discard input of a closed connection, until its client closes too."""
        count: cython.Py_ssize_t
        if conn.fd < 0:
            return
        if cython.compiled:  # pragma: no cover
            count = recv(conn.fd, self.data, RECEIVE_BYTES, MSG_DONTWAIT)
            if count == 0 or (count < 0 and errno != EAGAIN and errno != EINTR):
                self.drop(conn)
        else:
            try:
                if os.readv(conn.fd, [self.view[:RECEIVE_BYTES]]) == 0:
                    self.drop(conn)
            except BlockingIOError:
                pass
            except OSError:
                self.drop(conn)

    def read_tls(self, conn: LoopConnection) -> None:
        """Receive through OpenSSL: a record at a time, up to the limit of an iteration."""
        kept: cython.Py_ssize_t = 0
        if not conn.is_link and conn.filter is None and conn.parked == 0:
            kept = len(conn.partial)
        total: cython.Py_ssize_t = kept
        got: cython.Py_ssize_t = 0
        if kept + RECEIVE_BYTES + TLS_RECORD_BYTES > self.capacity:
            self.grow(kept + RECEIVE_BYTES + TLS_RECORD_BYTES)
        ended: cython.bint = False
        waiting: cython.Py_ssize_t = bytes_waiting(conn.fd)
        try:
            # Small writers send a record per packet: read all that have arrived, without a useless OpenSSL call.
            while total - kept < RECEIVE_BYTES:
                got = conn.tls.read(TLS_RECORD_BYTES, self.view[total : total + TLS_RECORD_BYTES])
                if got == 0:
                    ended = True
                    break
                total += got
                waiting -= got + TLS_OVERHEAD_BYTES
                if waiting <= TLS_OVERHEAD_BYTES and conn.tls.pending() == 0:
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            ended = True
        if total > kept:
            self.take_input(conn, kept, total - kept)
        if ended and not conn.closed:
            self.ended(conn)
        elif not conn.closed and conn.tls.pending() > 0:
            self.undecrypted.append(conn)
