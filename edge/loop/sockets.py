# ruff: noqa: F821
"""The sockets of one edge: their life from accept to close, their epoll events, and all sending.

One send per connection and iteration. It decides nothing about MQTT; ``edge/loop/loop.py`` decides the order of the
work.
"""

import contextlib
import os
import select
import socket
import ssl
from typing import TYPE_CHECKING, Any

import cython

from edge.loop.broker_loop import BrokerLoop
from edge.loop.buffers import Buffer
from edge.loop.state import LoopConnection

if not cython.compiled:
    from edge.loop.buffers import append_bytes
    from edge.loop.deliver import drain_pending
    from edge.loop.descriptors import NO_CONNECTION, accept_one, boot_ns, half_close
    from edge.loop.layout import FAILED, SHUTDOWN
    from edge.loop.memory import count_held
    from edge.loop.output import after_send, mark_dirty, output_of, take_dirty, unlink_dirty
    from edge.loop.parked_input import may_read_ahead
    from edge.loop.state import UNREGISTERED

if not cython.compiled and TYPE_CHECKING:  # the C names of linux.pxd and libc
    from edge.loop.linux import (
        EAGAIN,
        EINTR,
        EPOLL_CTL_ADD,
        EPOLL_CTL_MOD,
        MSG_DONTWAIT,
        MSG_NOSIGNAL,
        close_fd,
        epoll_ctl,
        epoll_event,
        errno,
        send,
    )

__all__ = ["Sockets"]

if not cython.compiled:  # compiled, these are C constants: sockets.pxd
    RECEIVE_BYTES = 64 * 1024  # per connection and iteration: the fairness rule
    RECEIVE_BYTES_MAX = 1024 * 1024  # for the rest of a large packet
    TLS_RECORD_BYTES = 16 * 1024
    WRITES_MASK = 15  # sockets written between two reads of the clock, less one
    EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP = 1, 4, 8, 16


class Sockets:
    """Clients, links and listeners by file descriptor, in one epoll set.

    Attributes:
        hot: The sans-IO core.
        epoll_fd: Readable when an iteration has work.
    """

    def __init__(self, hot: BrokerLoop) -> None:
        self.hot = hot
        self.epoll = select.epoll()
        self.epoll_fd = self.epoll.fileno()
        self.conns: list[LoopConnection | None] = []  # by file descriptor
        self.listeners: dict[int, tuple[socket.socket, object]] = {}
        self.paused: list[int] = []  # listeners that are paused until the next sweep
        self.capacity = RECEIVE_BYTES_MAX + RECEIVE_BYTES
        self.input = bytearray(self.capacity)
        self.view = memoryview(self.input)
        if not cython.compiled:
            self.data: Any = None  # in C a pointer into input
        else:  # pragma: no cover
            self.data = self.input
        self.tls_sockets: dict[int, socket.socket] = {}  # by file descriptor: OpenSSL refers to them weakly
        self.shared: set[int] = set()  # descriptors of sockets that another process may have too
        self.undecrypted: list[LoopConnection] = []  # OpenSSL holds bytes that epoll does not report
        self.handshakes = 0  # of this iteration
        self.handshakes_max = hot.limits.handshakes_per_iteration
        self.accepts_max = hot.limits.accepts_per_iteration

    # -- writing

    def flush(self) -> None:
        """Send once for every connection with output, or with a change of its epoll events."""
        hot: BrokerLoop = self.hot
        count: cython.int = 0
        conn: LoopConnection | None = take_dirty(hot)
        after: LoopConnection | None
        while conn is not None:
            if count & WRITES_MASK == 0:  # the process may have been stopped since the last check
                self.check_fence()
            count += 1
            after = unlink_dirty(conn)
            self.flush_conn(conn, False)
            conn = after

    def check_fence(self) -> None:
        """Read the clock; start the fence of a node that may no longer write to its clients."""
        hot: BrokerLoop = self.hot
        now_ns: cython.longlong
        if hot.fence_ns > 0:
            now_ns = boot_ns()
            if now_ns >= hot.fence_ns:
                hot.end_fence(now_ns)

    def flush_conn(self, conn: LoopConnection, writable: cython.bint) -> None:
        """Send, then set the connection's epoll events; ``writable``: epoll reported that."""
        blocked: cython.bint = conn.armed & EPOLLOUT != 0 and not writable
        filled: cython.bint  # its output must be requested
        if conn.fd < 0:
            return
        if conn.armed == UNREGISTERED:
            self.register(conn)
        if 0 < conn.tls_state < 4:
            if conn.closed:
                self.drop(conn)
            return
        if conn.has_acks and not self.hot.leased and not conn.closed:
            self.set_interest(conn, False)  # held until set_lease marks it again [PROTOCOL 1.6]
            return
        if not blocked:
            filled = conn.is_link or conn.filter is not None
            if filled:
                self.fill_output(conn)
            while conn.out is not None or conn.unsent is not None:
                if conn.unsent is not None:
                    blocked = self.send_unsent(conn)
                elif conn.tls is not None:
                    blocked = self.send_tls(conn)
                else:
                    blocked = self.send_output(conn)
                if blocked or conn.fd < 0:
                    break
                if filled:
                    self.fill_output(conn)
        if conn.fd < 0:
            return
        if conn.out is not None or conn.held_bytes > 0:
            count_held(self.hot, conn)
        if conn.closed:
            self.end(conn, blocked)
        else:
            self.set_interest(conn, blocked)

    def fill_output(self, conn: LoopConnection) -> None:
        """Move pending bytes of links and filters into the output."""
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

    def send_output(self, conn: LoopConnection) -> cython.bint:
        """Send once; True if the socket did not accept all bytes."""
        hot: BrokerLoop = self.hot
        count: cython.Py_ssize_t
        sent: cython.Py_ssize_t
        out: Buffer = conn.out  # type: ignore[assignment]  # the caller sends only if there is output
        count = out.end - out.start
        if cython.compiled:  # pragma: no cover
            sent = send(conn.fd, out.data + out.start, count, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent < 0:
                if errno not in (EAGAIN, EINTR):
                    self.fail(conn)
                return True
        else:
            try:
                sent = os.write(conn.fd, bytes(out.data[out.start : out.end]))
            except BlockingIOError:
                return True
            except OSError:
                self.fail(conn)
                return True
        out.start += sent
        conn.written += sent
        hot.bytes_out += sent
        after_send(hot, conn)
        if conn.outbound is not None and conn.outbound.pending:
            drain_pending(hot, conn)
        return sent < count

    def send_unsent(self, conn: LoopConnection) -> cython.bint:
        """Send bytes that a filter wrapped."""
        data: bytes = conn.unsent  # type: ignore[assignment]  # the caller sends only if there is output
        try:
            sent = conn.tls.write(data) if conn.tls is not None else os.write(conn.fd, data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return True
        except OSError:
            self.fail(conn)
            return True
        conn.unsent = data[sent:] if sent < len(data) else None
        return sent < len(data)

    def send_tls(self, conn: LoopConnection) -> cython.bint:
        """Send in slices of one record; after a refusal OpenSSL needs at least the same bytes again."""
        hot: BrokerLoop = self.hot
        count: cython.Py_ssize_t
        sent: cython.Py_ssize_t
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
            conn.written += sent
            hot.bytes_out += sent
            after_send(hot, conn)
        if conn.outbound is not None and conn.outbound.pending:
            drain_pending(hot, conn)
        return False

    def set_interest(self, conn: LoopConnection, blocked: cython.bint) -> None:
        """Set read events unless parked, and write events for a full socket.

        A client parked for a short time mostly sends nothing meanwhile: read events are disabled when it does
        (``conn_event``).
        """
        wanted: cython.uint = 0
        if self.hot.reading or conn.is_link:
            wanted = EPOLLIN if conn.parked == 0 or may_read_ahead(self.hot, conn) else conn.armed & EPOLLIN
        if blocked:
            wanted |= EPOLLOUT
        if wanted == conn.armed:
            return
        self.arm(conn, wanted)

    def arm(self, conn: LoopConnection, wanted: cython.uint) -> None:
        """Set the epoll events of a connection."""
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

    def listen(self, listener: socket.socket, owner: object) -> None:
        """Accept on a listening socket; every new one is passed to ``Handler.accepted``."""
        listener.setblocking(False)
        if listener.family != socket.AF_UNIX:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        self.listeners[listener.fileno()] = (listener, owner)
        self.epoll.register(listener.fileno(), EPOLLIN)

    def forget_listener(self, listener: socket.socket) -> None:
        """Stop accepting on a listening socket; its owner closes it."""
        fd = listener.fileno()
        if self.listeners.pop(fd, None) is None:
            return
        if fd in self.paused:
            self.paused.remove(fd)
        else:
            self.epoll.unregister(fd)

    def register(self, conn: LoopConnection) -> None:
        """Add a connection that the core attached to the epoll set, and start its TLS."""
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
            if conn.options.first_bytes is not None:
                conn.tls_state = 1
            else:
                self.begin_tls(conn)

    def read_first_bytes(self, conn: LoopConnection) -> None:
        """Read the bytes before TLS; the rest stays in the kernel."""
        options = conn.options
        assert options is not None and options.first_bytes is not None  # register checked them
        state: cython.int = options.first_bytes.read(conn.fd)
        if state == 0:
            return
        if state == 3:
            self.arm(conn, 0)
        elif state == 2:
            self.hot.close(conn, b"", False)
        elif options.tls is not None:
            self.begin_tls(conn)
        else:
            self.hot.begin_mqtt(conn)
            conn.tls_state = 0

    def begin_tls(self, conn: LoopConnection) -> None:
        """Attach OpenSSL to a socket."""
        options = conn.options
        assert options is not None  # register keeps them until the first bytes are read
        context: Any = options.tls
        # OpenSSL only uses the object's nonblocking flag; without it OpenSSL would wait.
        plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0, conn.fd)
        server = options.server_hostname is None
        try:
            # Undocumented; ``SSLSocket`` around it makes six system calls for known values, which takes longer than the
            # rest. The test of TLS covers it for each supported Python.
            conn.tls = context._wrap_socket(plain, server, options.server_hostname)
        except (OSError, ValueError):
            plain.detach()  # drop closes the descriptor
            self.fail(conn)
            return
        self.tls_sockets[conn.fd] = plain
        conn.tls_state = 2
        if not server:
            self.handshake(conn)

    def handshake(self, conn: LoopConnection) -> None:
        """Continue the TLS handshake; only a few per iteration, or a connect storm stalls established clients."""
        wanted: cython.uint = EPOLLIN
        if conn.closed:
            self.drop(conn)
            return
        if conn.tls_state == 1:
            self.read_first_bytes(conn)
            return
        if self.handshakes >= self.handshakes_max:
            return  # epoll will report it again
        self.handshakes += 1
        try:
            conn.tls.do_handshake()
        except ssl.SSLWantReadError:
            conn.tls_state = 2
        except ssl.SSLWantWriteError:
            conn.tls_state = 3
            wanted = EPOLLOUT
        except OSError:
            self.hot.tls_failed += 1
            self.fail(conn)
            return
        else:
            conn.tls_state = 4
            self.hot.begin_mqtt(conn)
            if conn.is_link:
                self.hot.handler.secured(conn)
            mark_dirty(self.hot, conn)
            if conn.tls.pending() > 0:
                self.undecrypted.append(conn)
        if conn.armed != wanted:
            self.arm(conn, wanted)

    def fail(self, conn: LoopConnection) -> None:
        """Handle an unusable socket."""
        waits: cython.bint = conn.pipelining or (len(conn.partial) > 0 and (conn.parked != 0 or conn.ready))
        if waits and not conn.closed and not conn.is_link:
            conn.out = None
            conn.unsent = None
            self.hot.end_of_file(conn)
            return
        if not conn.closed:
            self.hot.forget(conn, FAILED)
        self.drop(conn)

    def end(self, conn: LoopConnection, blocked: cython.bint) -> None:
        """Flush the last bytes of a closed connection, half-close, and wait briefly for the client to close.

        Closing a socket with unread bytes sends a reset, and the client would lose the last packet [MQTT-4.13.1-1].
        """
        if conn.close_at_ns == 0 or (conn.close_at_ns < 0 and not blocked):
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
            if not half_close(conn.fd):
                self.drop(conn)
                return
            if conn.armed != EPOLLIN:
                self.arm(conn, EPOLLIN)
        if conn.fd >= 0 and not conn.lingering:
            conn.lingering = True
            self.hot.lingering.append(conn)

    def drop(self, conn: LoopConnection) -> None:
        """Close the descriptor and remove the connection."""
        fd: cython.int = conn.fd
        if fd < 0:
            return
        conn.fd = -1
        if fd < len(self.conns) and self.conns[fd] is conn:
            self.conns[fd] = None
        conn.out = None
        conn.unsent = None
        count_held(self.hot, conn)
        if conn.tls is not None:
            conn.tls = None
            self.tls_sockets.pop(fd).detach()
        if self.shared and fd in self.shared:
            self.end_shared(fd)
        if cython.compiled:  # pragma: no cover
            close_fd(fd)
        else:
            with contextlib.suppress(OSError):
                os.close(fd)

    def share(self, fd: int) -> None:
        """Mark a connection's socket as possibly shared with another process."""
        self.shared.add(fd)

    def end_shared(self, fd: cython.int) -> None:
        """Shut down a socket that another process may share: the peer is notified, and epoll reports it no longer."""
        self.shared.discard(fd)
        with contextlib.suppress(OSError):
            self.epoll.unregister(fd)
        borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd)
        with contextlib.suppress(OSError):
            borrowed.shutdown(socket.SHUT_RDWR)
        borrowed.detach()

    def accept(self, fd: cython.int) -> None:
        """Accept new sockets, a limited number per iteration."""
        accepted: cython.int
        listener, owner = self.listeners[fd]
        for _ in range(self.accepts_max):
            accepted, address, port = accept_one(fd, listener)
            if accepted == NO_CONNECTION:
                return
            if accepted < 0:  # no descriptors left: the backlog keeps them until the next sweep
                self.hot.accept_failed += 1
                self.rest(fd)
            else:
                self.hot.handler.accepted(owner, accepted, address, port)
            if fd in self.paused:
                return

    def rest(self, fd: int) -> None:
        """Pause a listener until the next sweep, a second at most: the backlog keeps new connections."""
        if fd in self.listeners and fd not in self.paused:
            self.epoll.unregister(fd)
            self.paused.append(fd)

    def sweep_sockets(self, now_ns: cython.longlong) -> None:
        """Once per second: lingering sockets, paused listeners."""
        conn: LoopConnection
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

    def close_sockets(self) -> None:
        """Close all connections at once."""
        for conn in list(self.hot.conns):
            if not conn.closed:
                self.hot.forget(conn, SHUTDOWN)
            self.drop(conn)
        self.hot.close_reports_left = len(self.hot.closed_conns)
        self.hot.call_closed()
        self.hot.dirty_conns()  # a chain as long as the number of connections: unlinked one by one
        self.epoll.close()
