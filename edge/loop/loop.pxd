# C form of loop.py.
from edge.loop.broker_loop cimport BrokerLoop
from edge.loop.descriptors cimport boot_ns, bytes_waiting
from edge.loop.durations cimport count_durations
from edge.loop.linux cimport (
    CLOCK_BOOTTIME, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, TFD_CLOEXEC, TFD_NONBLOCK, TFD_TIMER_ABSTIME,
    epoll_event, epoll_wait, itimerspec, only_thread, read, recv, timerfd_create, timerfd_settime, wait_ns
)
from edge.loop.output cimport mark_dirty
from edge.loop.parked_input cimport may_read_ahead
from edge.loop.memory cimport count_held
from edge.loop.pacing cimport Pacing, after_iteration, gap_ns
from edge.loop.parse cimport park_unread, parse
from edge.loop.sockets cimport RECEIVE_BYTES, RECEIVE_BYTES_MAX, Sockets, TLS_RECORD_BYTES
from edge.loop.state cimport LoopConnection, UNREGISTERED
from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memcpy


cdef enum:
    TLS_OVERHEAD_BYTES = 22
    IDLE_NS = 5000
    LAG_CHECK_NS = 20000000
    SWEEP_NS = 1000000000
    OVERDUE_NS = 2000000000
    SWEPT_MAX = 256


cdef class Loop(Sockets):
    cdef int trio_fd
    cdef int timer_fd
    cdef long long armed_ns
    cdef public bint kicked
    cdef epoll_event events[512]
    cdef list polled
    cdef int event_at
    cdef int event_count
    cdef long long iteration_ns_max
    cdef public long long longest_ns
    cdef public long long longest_own_ns
    cdef long long swept_ns
    cdef long long woke_ns
    cdef long long iteration_end_ns
    cdef long long blocked_ns
    cdef bint idle
    cdef Pacing pacing
    cdef bint one_turn(self, long long until_ns) except -1
    cdef bint wait_for_events(self, long long until_ns) except -1
    cdef object set_timer(self, long long at_ns)
    cdef bint has_read_all(self)
    cdef object clear_timer(self)
    cdef object sweep(self, long long now_ns)
    cdef object conn_event(self, int fd, unsigned int events)
    cdef object read(self, LoopConnection conn)
    cdef object ended(self, LoopConnection conn)
    cdef object grow(self, Py_ssize_t count)
    cdef object take_input(self, LoopConnection conn, Py_ssize_t kept, Py_ssize_t count)
    cdef object read_tls(self, LoopConnection conn)
    cdef object discard(self, LoopConnection conn)
