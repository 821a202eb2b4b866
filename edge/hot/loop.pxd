# C form of loop.py.
from edge.hot.buffers cimport Buffer, append_bytes
from edge.hot.centre cimport Hot
from edge.hot.deliver cimport drain_pending
from edge.hot.linux cimport (
    CLOCK_BOOTTIME, TFD_CLOEXEC, TFD_NONBLOCK, TFD_TIMER_ABSTIME, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, FIONREAD, MSG_DONTWAIT, MSG_NOSIGNAL,
    IPPROTO_TCP, SHUT_WR, SOCK_CLOEXEC, SOCK_NONBLOCK, TCP_NODELAY, accept4, clock_gettime, close_fd,
    epoll_ctl, epoll_event, epoll_wait, ioctl, itimerspec, read, recv, send, setsockopt, shutdown, timerfd_create, timerfd_settime,
    only_thread, timespec, wait_ns
)
from edge.hot.output cimport drained, mark_dirty, output_of, take_dirty, unlink_dirty
from edge.hot.pacing cimport Pacing, after_round, gap_ns
from edge.hot.parse cimport may_read, parse
from edge.hot.state cimport Conn, Peer, UNREGISTERED
from libc.errno cimport EAGAIN, ECONNABORTED, ECONNREFUSED, ECONNRESET, EINTR, EPIPE, errno
from libc.string cimport memcpy


cdef enum:
    RECEIVE_BYTES = 65536
    RECEIVE_BYTES_MAX = 1048576
    TLS_RECORD_BYTES = 16384
    TLS_OVERHEAD_BYTES = 22
    IDLE_NS = 5000
    LAG_CHECK_NS = 20000000
    SWEEP_NS = 1000000000
    NONE_WAITS = -2


cdef class Loop:
    cdef readonly Hot hot
    cdef readonly object epoll
    cdef readonly int epoll_fd
    cdef int trio_fd
    cdef int timer_fd
    cdef long long armed_ns
    cdef public bint kicked
    cdef list conns
    cdef dict listeners
    cdef list paused
    cdef bytearray input
    cdef object view
    cdef unsigned char* data
    cdef Py_ssize_t capacity
    cdef epoll_event events[512]
    cdef list polled
    cdef int event_at
    cdef int event_count
    cdef dict tls_sockets
    cdef list undecrypted
    cdef int handshakes
    cdef int handshakes_max
    cdef int accepts_max
    cdef long long round_ns_max
    cdef long long swept_ns
    cdef long long woke_ns
    cdef long long round_ns
    cdef long long blocked_ns
    cdef bint idle
    cdef Pacing pacing
    cdef bint wait_for_events(self, long long until_ns) except -1
    cdef bint one_round(self, long long until_ns) except -1
    cdef object set_timer(self, long long at_ns)
    cdef object timer_rang(self)
    cdef object read(self, Conn conn)
    cdef object read_tls(self, Conn conn)
    cdef object take_input(self, Conn conn, Py_ssize_t kept, Py_ssize_t count)
    cdef object flush(self)
    cdef object flush_conn(self, Conn conn, bint writable)
    cdef object fill_output(self, Conn conn)
    cdef bint send_output(self, Conn conn) except -1
    cdef bint send_tls(self, Conn conn) except -1
    cdef object set_interest(self, Conn conn, bint blocked)
    cdef object register(self, Conn conn)
    cdef object handshake(self, Conn conn)
    cdef object end(self, Conn conn, bint blocked)
    cdef object drop(self, Conn conn)
    cdef object discard(self, Conn conn)
    cdef object accept(self, int fd)
    cdef object sweep(self, long long now_ns)
    cdef object conn_event(self, int fd, unsigned int events)
    cdef object grow(self, Py_ssize_t count)
    cdef object arm(self, Conn conn, unsigned int wanted)
    cdef object fail(self, Conn conn)
    cdef bint send_unsent(self, Conn conn) except -1


cpdef long long boot_ns() noexcept


# private
cdef Py_ssize_t _bytes_waiting(int fd)
cdef int _accept(int fd, object listener) except -3
cdef bint _shutdown(int fd) except -1
