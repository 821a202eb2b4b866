# mypy: disable-error-code="no-any-return, name-defined, has-type, union-attr, assignment, attr-defined, operator"
# ruff: noqa: F821
"""Sockets around ``Hot``: one epoll set for clients, links and listeners, and trio's own epoll as a member of it.

A round is: wait, one receive per readable connection, parse, then one send per connection that has something to say.
The work of a round is capped, the rest of the same event array follows in the next one, or its tail would starve.
Decides nothing about MQTT. Who blocks where: ``edge/hot/host.py``. See docs/adr/0008-trio-with-a-compiled-loop.md.
"""

import contextlib
import fcntl
import os
import resource
import select
import socket
import ssl
import termios
import time

import cython

from edge.hot.centre import Hot
from edge.hot.pacing import Pacing
from edge.hot.state import Conn

if not cython.compiled:
    from edge.hot.buffers import append_bytes
    from edge.hot.deliver import drain_pending
    from edge.hot.output import drained, mark_dirty, output_of, take_dirty, unlink_dirty
    from edge.hot.pacing import after_round, gap_ns
    from edge.hot.parse import may_read, parse
    from edge.hot.state import UNREGISTERED

__all__ = ["Loop", "connections_allowed"]

if not cython.compiled:  # compiled, these are C constants: loop.pxd
    RECEIVE_BYTES = 64 * 1024  # per connection and round: the fairness rule
    RECEIVE_BYTES_MAX = 1024 * 1024  # for the rest of a large packet
    TLS_RECORD_BYTES = 16 * 1024
    TLS_OVERHEAD_BYTES = 22  # of a TLS 1.3 record: header, content type, tag
    IDLE_NS = 5_000
    LAG_CHECK_NS = 20_000_000
    SWEEP_NS = 1_000_000_000
    EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP = 1, 4, 8, 16
    NONE_WAITS = -2  # of _accept

EVENTS_MAX = 512
RESERVED_FILES = 64  # links, logs, listeners, trio
FAILED, SHUTDOWN = 2, 3  # edge.hot.handler.Closed


def boot_ns() -> cython.longlong:
    """CLOCK_BOOTTIME: what leases are measured on."""
    if cython.compiled:  # pragma: no cover
        now: timespec
        clock_gettime(CLOCK_BOOTTIME, cython.address(now))
        return cython.cast(cython.longlong, now.tv_sec) * 1_000_000_000 + now.tv_nsec
    else:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def connections_allowed() -> tuple[int, int]:
    """Raise the soft limit of open files to the hard one; return it and the connections that it leaves room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft, max(0, soft - RESERVED_FILES)


class Loop:
    """The event loop of one edge process.

    Attributes:
        hot: The sans-IO centre.
        epoll_fd: Readable when a round has something to do.
        kicked: Set by ``kick``: somebody woke a trio task, trio must run.
    """

    def __init__(self, hot: Hot, trio_fd: int = -1) -> None:
        self.hot = hot
        self.epoll = select.epoll()
        self.epoll_fd = self.epoll.fileno()
        self.trio_fd = trio_fd
        self.kicked = False
        self.conns: list[Conn | None] = []  # by file descriptor
        self.listeners: dict[int, tuple[socket.socket, object]] = {}
        self.paused: list[int] = []  # listeners without room for another descriptor
        self.capacity = RECEIVE_BYTES_MAX + RECEIVE_BYTES
        self.input = bytearray(self.capacity)
        self.view = memoryview(self.input)
        if cython.compiled:  # pragma: no cover
            self.data = self.input
        self.polled: list[tuple[int, int]] = []
        self.event_at = 0
        self.event_count = 0
        self.tls_sockets: dict[int, socket.socket] = {}  # by file descriptor: what OpenSSL refers to weakly
        self.undecrypted: list[Conn] = []  # OpenSSL holds bytes that epoll does not know of
        self.handshakes = 0
        self.handshakes_max = hot.limits.handshakes_per_round
        self.accepts_max = hot.limits.accepts_per_round
        self.round_ns_max = hot.limits.round_ns_max
        self.swept_ns = boot_ns()
        self.woke_ns = 0  # when the last wait ended, 0 if it did not wait
        self.round_ns = 0  # end of the newest round, before its output was sent
        self.blocked_ns = 0
        self.idle = False  # the last wait did wait
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

    def listen(self, listener: socket.socket, owner: object) -> None:
        """Accept on a listening socket; every new one goes to ``Handler.accepted(owner, fd)``."""
        listener.setblocking(False)
        self.listeners[listener.fileno()] = (listener, owner)
        self.epoll.register(listener.fileno(), EPOLLIN)

    def kick(self) -> None:
        """A Handler call scheduled trio work: return to trio after this round."""
        self.kicked = True

    def pacing_switched_on(self) -> int:
        """How often pacing was found useful."""
        return self.pacing.switched_on

    def patience_s(self) -> float:
        """How long a nested host may wait for ``epoll_fd`` before it makes a round anyway."""
        hot = self.hot
        if hot.ready or hot.gone or hot.dirty_first is not None or (hot.busy_peers and hot.leased):
            return 0.0
        if self.undecrypted or self.event_at < self.event_count:
            return 0.0
        patience_ns = LAG_CHECK_NS if hot.high or hot.paced else SWEEP_NS
        if hot.round_end_ns > 0:
            patience_ns = min(patience_ns, max(0, hot.round_end_ns - boot_ns()))
        return patience_ns / 1e9

    def close(self) -> None:
        """End all connections at once."""
        for conn in list(self.hot.conns.values()):
            if not conn.closed:
                self.hot.forget(conn, SHUTDOWN)
            self.drop(conn)
        self.hot.call_closed()
        self.hot.dirty_conns()  # a chain as long as there were connections: let go of link by link
        self.epoll.close()
        if self.timer_fd >= 0:
            os.close(self.timer_fd)
            self.timer_fd = -1

    # -- rounds

    def run(self, timeout_s: cython.double) -> cython.bint:
        """Make rounds until trio's epoll is readable, ``kick`` was called or the time is over; at least one.

        Args:
            timeout_s: 0 for one round that does not wait.
        Returns:
            Whether trio has to be woken from a wait that it computed before.
        """
        deadline: cython.longlong = boot_ns() + cython.cast(cython.longlong, min(timeout_s, 86_400.0) * 1e9)
        while True:
            if self.one_round(deadline if timeout_s > 0 else 0):
                return False
            if self.kicked:
                self.kicked = False
                return timeout_s > 0
            if timeout_s <= 0:
                return False
            if self.round_ns >= deadline:
                return True

    def one_round(self, until_ns: cython.longlong) -> cython.bint:
        """Wait (until a moment, 0: not at all), read, parse, send; True if trio's epoll became readable."""
        hot: Hot = self.hot
        start: cython.longlong
        trio_ready: cython.bint = False
        fd: cython.int
        events: cython.uint
        conn: Conn
        if self.event_at >= self.event_count:
            self.wait_for_events(until_ns)
        start = self.woke_ns if self.woke_ns > 0 else boot_ns()
        self.woke_ns = 0
        hot.begin_round(start)
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
                self.timer_rang()
            else:
                self.conn_event(fd, events)
            if hot.round_bytes > hot.round_bytes_max:
                break
            if self.event_at & 15 == 0 and boot_ns() - start > self.round_ns_max:
                break
        start = boot_ns()
        self.round_ns = start
        hot.end_round(start)
        self.flush()
        if start - self.swept_ns >= SWEEP_NS:
            self.sweep(start)
        after_round(self.pacing, start, hot.packets_in, self.blocked_ns)
        return trio_ready

    def wait_for_events(self, until_ns: cython.longlong) -> cython.bint:
        """Fill the event array; blocks, until a moment at most, only when nothing is left to do."""
        hot: Hot = self.hot
        before: cython.longlong = 0
        blocks: cython.bint
        gap: cython.longlong = gap_ns(self.pacing)
        if gap > 0 and until_ns > 0 and not hot.ready and not hot.gone:
            before = boot_ns()
            if cython.compiled:  # pragma: no cover
                with cython.nogil:
                    wait_ns(self.trio_fd, gap)
            else:
                time.sleep(gap / 1e9)
            self.blocked_ns += boot_ns() - before
        blocks = until_ns > 0 and not (
            hot.ready
            or hot.gone
            or hot.dirty_first is not None
            or (hot.busy_peers and hot.leased)
            or self.undecrypted
            or self.kicked
        )
        if blocks:
            until_ns = min(until_ns, self.swept_ns + SWEEP_NS)
            if hot.round_end_ns > 0:
                until_ns = min(until_ns, hot.round_end_ns)
            if hot.high or hot.paced:
                until_ns = min(until_ns, boot_ns() + LAG_CHECK_NS)
        self.event_at = 0
        if cython.compiled:  # pragma: no cover
            self.event_count = 0
            if not blocks or not self.idle:
                # The interpreter lock is kept: a busy worker thread would give it back milliseconds later.
                self.event_count = epoll_wait(self.epoll_fd, self.events, 512, 0)
                self.idle = self.event_count == 0
            if self.event_count == 0 and blocks:
                before = boot_ns()
                if before >= until_ns:
                    return True
                if self.armed_ns > until_ns or self.armed_ns <= before:
                    self.set_timer(until_ns)
                if only_thread():  # nobody can want the lock, and handing it around takes longer than parsing
                    self.event_count = epoll_wait(self.epoll_fd, self.events, 512, -1)
                else:
                    with cython.nogil:
                        self.event_count = epoll_wait(self.epoll_fd, self.events, 512, -1)
                self.woke_ns = boot_ns()
                self.blocked_ns += self.woke_ns - before
                self.idle = self.woke_ns - before > IDLE_NS  # mostly idle: save the look without waiting next time
            if self.event_count < 0:
                self.event_count = 0
        else:
            before = boot_ns()
            self.polled = self.epoll.poll(max(0, until_ns - before) / 1e9 if blocks else 0, EVENTS_MAX)
            self.event_count = len(self.polled)
            self.blocked_ns += boot_ns() - before
        return True

    def set_timer(self, at_ns: cython.longlong) -> None:
        """Have ``timer_fd`` ring: a timer that stays costs less than a timeout that is set up at every wait."""
        self.armed_ns = at_ns
        if cython.compiled:  # pragma: no cover
            timer: itimerspec
            timer.it_interval.tv_sec = 0
            timer.it_interval.tv_nsec = 0
            timer.it_value.tv_sec = at_ns // 1_000_000_000
            timer.it_value.tv_nsec = at_ns % 1_000_000_000
            timerfd_settime(self.timer_fd, TFD_TIMER_ABSTIME, cython.address(timer), cython.NULL)

    def timer_rang(self) -> None:
        """The next wait arms it again."""
        self.armed_ns = 0
        if cython.compiled:  # pragma: no cover
            count: cython.ulonglong = 0
            read(self.timer_fd, cython.address(count), 8)

    def conn_event(self, fd: cython.int, events: cython.uint) -> None:
        """Act on what epoll said of one descriptor."""
        conn: Conn | None
        conn = self.conns[fd] if fd < len(self.conns) else None
        if conn is None:
            if fd in self.listeners:
                self.accept(fd)
            return
        if 0 < conn.tls_state < 3:
            self.handshake(conn)
            return
        if events & EPOLLOUT:
            self.flush_conn(conn, True)
        if conn.closed:
            self.discard(conn)
        elif events & EPOLLIN and conn.parked == 0:
            self.read(conn)
        elif events & (EPOLLERR | EPOLLHUP):
            self.hot.end_of_file(conn)
            if not conn.closed:  # it ends when its last packets were answered; epoll would say so without end
                self.epoll.unregister(conn.fd)
                conn.armed = UNREGISTERED

    # -- reading

    def read(self, conn: Conn) -> None:
        """One receive, then parse; not at all if it is parked or what it feeds has no room."""
        hot: Hot = self.hot
        kept: cython.Py_ssize_t
        wanted: cython.Py_ssize_t = RECEIVE_BYTES
        count: cython.Py_ssize_t
        if conn.closed or conn.parked != 0 or conn.ready or conn.fd < 0:
            return
        if not conn.is_link and not may_read(hot, conn):
            return
        if conn.tls is not None:
            self.read_tls(conn)
            return
        kept = len(conn.partial) if not conn.is_link and conn.filter is None else 0
        if conn.needed > kept + wanted:
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
            hot.end_of_file(conn)
            return
        self.take_input(conn, kept, count)

    def grow(self, count: cython.Py_ssize_t) -> None:
        """Make room for one packet that is larger than the buffer."""
        self.view.release()
        self.capacity = 2 * count
        self.input = bytearray(self.capacity)
        self.view = memoryview(self.input)
        if cython.compiled:  # pragma: no cover
            self.data = self.input

    def take_input(self, conn: Conn, kept: cython.Py_ssize_t, count: cython.Py_ssize_t) -> None:
        """Parse what stands in the buffer behind ``kept`` bytes of space for the connection's kept ones."""
        hot: Hot = self.hot
        total: cython.Py_ssize_t = kept + count
        consumed: cython.Py_ssize_t
        hot.now_ns = boot_ns()  # the lease counts from when the packet was here [PROTOCOL 1.5]
        hot.leased = hot.now_ns < hot.lease_until_ns
        if conn.is_link or conn.filter is not None:
            hot.feed(conn, bytes(self.view[:count]))
            return
        if conn.version != 0:  # before CONNECT the time runs from accept, whatever trickles in
            conn.heard_ns = hot.now_ns
        hot.bytes_in += count
        if cython.compiled:  # pragma: no cover
            if kept > 0:
                memcpy(self.data, cython.cast(cython.p_uchar, conn.partial), kept)
            if total < conn.needed:
                conn.partial = self.data[:total]
                return
            conn.partial = b""
            consumed = parse(hot, conn, self.data, 0, total)
            if consumed < total and not conn.closed:
                conn.partial = self.data[consumed:total]
        else:
            data = conn.partial + bytes(self.view[kept:total])
            conn.partial = data
            if total < conn.needed:
                return
            conn.partial = b""
            consumed = parse(hot, conn, data, 0, total)
            if consumed < total and not conn.closed:
                conn.partial = data[consumed:]

    def read_tls(self, conn: Conn) -> None:
        """Receive through OpenSSL: a record at a time, up to the cap of a round."""
        hot: Hot = self.hot
        kept: cython.Py_ssize_t = len(conn.partial) if not conn.is_link and conn.filter is None else 0
        total: cython.Py_ssize_t = kept
        got: cython.Py_ssize_t = 0
        if kept + RECEIVE_BYTES + TLS_RECORD_BYTES > self.capacity:
            self.grow(kept + RECEIVE_BYTES + TLS_RECORD_BYTES)
        ended: cython.bint = False
        waiting: cython.Py_ssize_t = _bytes_waiting(conn.fd)
        try:
            # Small writers send a record per packet: take all that are here, without asking OpenSSL once too often.
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
            hot.end_of_file(conn)
        elif not conn.closed and conn.tls.pending() > 0:
            self.undecrypted.append(conn)

    # -- writing

    def flush(self) -> None:
        """One send for every connection that has something to say, or changed what it waits for."""
        conn: Conn | None = take_dirty(self.hot)
        after: Conn | None
        while conn is not None:
            after = unlink_dirty(conn)
            self.flush_conn(conn, False)
            conn = after

    def flush_conn(self, conn: Conn, writable: cython.bint) -> None:
        """Send, then arm what the connection waits for; ``writable``: epoll said so."""
        blocked: cython.bint = conn.armed & EPOLLOUT != 0 and not writable
        filled: cython.bint  # its output is asked for
        if conn.fd < 0:
            return
        if conn.armed == UNREGISTERED:
            self.register(conn)
        if 0 < conn.tls_state < 3:
            if conn.closed:
                self.drop(conn)
            return
        if conn.has_acks and not self.hot.leased and not conn.closed:
            self.set_interest(conn, False)  # held until set_lease lists it again [PROTOCOL 1.6]
            return
        if not blocked:
            filled = conn.is_link or conn.filter is not None
            if filled:
                self.fill_output(conn)
            while conn.out is not None or conn.unsent is not None:
                blocked = self.send_tls(conn) if conn.tls is not None else self.send_output(conn)
                if blocked or conn.fd < 0:
                    break
                if filled:
                    self.fill_output(conn)
        if conn.fd < 0:
            return
        if conn.closed:
            self.end(conn, blocked)
        else:
            self.set_interest(conn, blocked)

    def fill_output(self, conn: Conn) -> None:
        """Move what links and filters have to say into the output."""
        if conn.out is not None:
            if conn.filter is not None and conn.unsent is None:
                conn.unsent = self.hot.take_output(conn) or None
            return
        if conn.is_link and conn.peer is not None and conn.peer.conn is conn and not conn.closed:
            data: bytes = conn.peer.link.take_output()
            if data:
                append_bytes(output_of(self.hot, conn), data)
        if conn.filter is not None and conn.unsent is None:
            conn.unsent = self.hot.take_output(conn) or None

    def send_output(self, conn: Conn) -> cython.bint:
        """One send; True if the socket did not take everything."""
        hot: Hot = self.hot
        count: cython.Py_ssize_t
        sent: cython.Py_ssize_t
        if conn.unsent is not None:
            return self.send_unsent(conn)
        count = conn.out.end - conn.out.start
        if cython.compiled:  # pragma: no cover
            sent = send(conn.fd, conn.out.data + conn.out.start, count, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent < 0:
                if errno not in (EAGAIN, EINTR):
                    self.fail(conn)
                return True
        else:
            try:
                sent = os.write(conn.fd, bytes(conn.out.data[conn.out.start : conn.out.end]))
            except BlockingIOError:
                return True
            except OSError:
                self.fail(conn)
                return True
        conn.out.start += sent
        hot.bytes_out += sent
        drained(hot, conn)
        if conn.outbound is not None and conn.outbound.pending:
            drain_pending(hot, conn)
        return sent < count

    def send_unsent(self, conn: Conn) -> cython.bint:
        """Send bytes that a filter wrapped."""
        data: bytes = conn.unsent
        try:
            sent = conn.tls.write(data) if conn.tls is not None else os.write(conn.fd, data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return True
        except OSError:
            self.fail(conn)
            return True
        conn.unsent = data[sent:] if sent < len(data) else None
        return sent < len(data)

    def send_tls(self, conn: Conn) -> cython.bint:
        """Send in slices of one record; after a refusal OpenSSL wants at least the same bytes again."""
        hot: Hot = self.hot
        count: cython.Py_ssize_t
        sent: cython.Py_ssize_t
        if conn.unsent is not None:
            return self.send_unsent(conn)
        while conn.out is not None:
            count = min(conn.out.end - conn.out.start, TLS_RECORD_BYTES)
            try:
                if cython.compiled:  # pragma: no cover
                    sent = conn.tls.write(conn.out.data[conn.out.start : conn.out.start + count])
                else:
                    sent = conn.tls.write(bytes(conn.out.data[conn.out.start : conn.out.start + count]))
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return True
            except OSError:
                self.fail(conn)
                return True
            conn.out.start += sent
            hot.bytes_out += sent
            drained(hot, conn)
        if conn.outbound is not None and conn.outbound.pending:
            drain_pending(hot, conn)
        return False

    def set_interest(self, conn: Conn, blocked: cython.bint) -> None:
        """Read unless parked; be told when a full socket has room."""
        wanted: cython.uint = 0
        if conn.parked == 0:
            wanted = EPOLLIN
        if blocked:
            wanted |= EPOLLOUT
        if wanted == conn.armed:
            return
        self.arm(conn, wanted)

    def arm(self, conn: Conn, wanted: cython.uint) -> None:
        """Tell epoll."""
        if cython.compiled:  # pragma: no cover
            event: epoll_event
            event.events = wanted
            event.data.u64 = 0
            event.data.fd = conn.fd
            epoll_ctl(self.epoll_fd, EPOLL_CTL_MOD, conn.fd, cython.address(event))
        else:
            self.epoll.modify(conn.fd, wanted)
        conn.armed = wanted

    # -- life of a socket

    def register(self, conn: Conn) -> None:
        """A connection that the core attached: into the epoll set, and its TLS begins."""
        while len(self.conns) <= conn.fd:
            self.conns.append(None)
        self.conns[conn.fd] = conn
        if cython.compiled:  # pragma: no cover
            event: epoll_event
            event.events = EPOLLIN
            event.data.u64 = 0
            event.data.fd = conn.fd
            if epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, conn.fd, cython.address(event)) < 0:
                raise OSError(errno, os.strerror(errno))
        else:
            self.epoll.register(conn.fd, EPOLLIN)
        conn.armed = EPOLLIN
        if conn.options is not None:
            options = conn.options
            conn.options = None
            # Of all that the object says of the socket only "does not block" counts, or OpenSSL waits.
            plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0, conn.fd)
            server = options.server_hostname is None
            try:
                # Undocumented; ``SSLSocket`` around it asks the kernel six things that are known here, which takes
                # longer than the rest. The test of TLS covers it for each supported Python.
                conn.tls = options.tls._wrap_socket(plain, server, options.server_hostname)
            except (OSError, ValueError):
                plain.detach()  # drop closes the descriptor
                self.fail(conn)
                return
            self.tls_sockets[conn.fd] = plain
            conn.tls_state = 1
            if not server:
                self.handshake(conn)

    def handshake(self, conn: Conn) -> None:
        """Go on with the TLS handshake; only a few a round, or a connect storm stalls established clients."""
        wanted: cython.uint = EPOLLIN
        if conn.closed:
            self.drop(conn)
            return
        if self.handshakes >= self.handshakes_max:
            return  # epoll will say so again
        self.handshakes += 1
        try:
            conn.tls.do_handshake()
        except ssl.SSLWantReadError:
            conn.tls_state = 1
        except ssl.SSLWantWriteError:
            conn.tls_state = 2
            wanted = EPOLLOUT
        except OSError:
            self.hot.tls_failed += 1
            self.fail(conn)
            return
        else:
            conn.tls_state = 3
            mark_dirty(self.hot, conn)
            if conn.tls.pending() > 0:
                self.undecrypted.append(conn)
        if conn.armed != wanted:
            self.arm(conn, wanted)

    def fail(self, conn: Conn) -> None:
        """The socket is unusable."""
        if conn.parked != 0 and conn.partial and not conn.closed and not conn.is_link:
            conn.out = None
            conn.unsent = None
            self.hot.end_of_file(conn)
            return
        if not conn.closed:
            self.hot.forget(conn, FAILED)
        self.drop(conn)

    def end(self, conn: Conn, blocked: cython.bint) -> None:
        """Flush the last bytes of a closed connection, half-close, and wait a little for the client to close.

        Closing a socket with unread bytes sends a reset, and the client would lose the last packet [MQTT-4.13.1-1].
        """
        if conn.close_at_ns == 0:
            self.drop(conn)
            return
        if blocked:
            if conn.armed != EPOLLOUT | EPOLLIN:
                self.arm(conn, EPOLLOUT | EPOLLIN)
        elif not conn.half_closed:
            conn.half_closed = True
            try:
                if conn.tls is not None:
                    with contextlib.suppress(ssl.SSLError):
                        conn.tls.shutdown()
            except OSError:
                self.drop(conn)
                return
            if not _shutdown(conn.fd):
                self.drop(conn)
                return
            if conn.armed != EPOLLIN:
                self.arm(conn, EPOLLIN)
        if conn.fd >= 0 and not conn.lingering:
            conn.lingering = True
            self.hot.lingering.append(conn)

    def discard(self, conn: Conn) -> None:
        """Read and forget what a closed connection's client still sends, until it closes too."""
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

    def drop(self, conn: Conn) -> None:
        """Close the descriptor and forget the connection."""
        fd: cython.int = conn.fd
        if fd < 0:
            return
        conn.fd = -1
        if fd < len(self.conns) and self.conns[fd] is conn:
            self.conns[fd] = None
        conn.out = None
        conn.unsent = None
        if conn.tls is not None:
            conn.tls = None
            self.tls_sockets.pop(fd).detach()
        if cython.compiled:  # pragma: no cover
            close_fd(fd)
        else:
            with contextlib.suppress(OSError):
                os.close(fd)

    def accept(self, fd: cython.int) -> None:
        """Take new sockets, a bounded number a round."""
        accepted: cython.int
        listener, owner = self.listeners[fd]
        for _ in range(self.accepts_max):
            accepted = _accept(fd, listener)
            if accepted == NONE_WAITS:
                return
            if accepted < 0:  # no descriptors left: the backlog keeps them until the next sweep
                self.hot.accept_failed += 1
                self.epoll.unregister(fd)
                self.paused.append(fd)
                return
            self.hot.handler.accepted(owner, accepted)

    def sweep(self, now_ns: cython.longlong) -> None:
        """Once a second: silent clients, lingering sockets, listeners that ran out of descriptors."""
        conn: Conn
        self.swept_ns = now_ns - now_ns % SWEEP_NS  # of the host's clock, with heartbeats: one wake-up for both
        self.hot.sweep(now_ns)
        if self.hot.lingering:
            lingering = self.hot.lingering
            self.hot.lingering = []
            for conn in lingering:
                if conn.fd >= 0 and now_ns < conn.close_at_ns:
                    self.hot.lingering.append(conn)
                else:
                    self.drop(conn)
        for fd in self.paused:
            self.epoll.register(fd, EPOLLIN)
        self.paused = []


def _bytes_waiting(fd: cython.int) -> cython.Py_ssize_t:
    """Bytes in the kernel's receive buffer."""
    if cython.compiled:  # pragma: no cover
        count: cython.int = 0
        ioctl(fd, FIONREAD, cython.address(count))
        return count
    else:
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), "little")


def _accept(fd: cython.int, listener: socket.socket) -> cython.int:
    """Return a new descriptor that does not block, ``NONE_WAITS`` without one to take, -1 where none can be had."""
    if cython.compiled:  # pragma: no cover
        one: cython.int = 1
        taken: cython.int = accept4(fd, cython.NULL, cython.NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
        if taken >= 0:
            setsockopt(taken, IPPROTO_TCP, TCP_NODELAY, cython.address(one), cython.sizeof(one))  # not of AF_UNIX
            return taken
        if errno in (EAGAIN, EINTR, ECONNABORTED, ECONNREFUSED, ECONNRESET, EPIPE):
            return NONE_WAITS
        return -1
    else:
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionError, InterruptedError):
            return NONE_WAITS
        except OSError:
            return -1
        accepted.setblocking(False)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return accepted.detach()


def _shutdown(fd: cython.int) -> cython.bint:
    """Half-close a descriptor that stays open; False if it is no longer connected."""
    if cython.compiled:  # pragma: no cover
        return shutdown(fd, SHUT_WR) == 0
    else:
        borrowed = socket.socket(fileno=fd)
        try:
            borrowed.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        finally:
            borrowed.detach()
        return True
