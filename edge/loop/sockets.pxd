# C form of sockets.py.
from edge.loop.buffers cimport Buffer, append_bytes
from edge.loop.broker_loop cimport BrokerLoop
from edge.loop.deliver cimport drain_pending
from edge.loop.descriptors cimport NO_CONNECTION, accept_one, boot_ns, half_close
from edge.loop.layout cimport FAILED, SHUTDOWN
from edge.loop.linux cimport (
    EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLL_CTL_ADD, EPOLL_CTL_MOD, MSG_DONTWAIT, MSG_NOSIGNAL,
    close_fd, epoll_ctl, epoll_event, send
)
from edge.loop.parked_input cimport may_read_ahead
from edge.loop.memory cimport count_held
from edge.loop.output cimport after_send, mark_dirty, output_of, take_dirty, unlink_dirty
from edge.loop.state cimport LoopConnection, LoopPeer, UNREGISTERED
from libc.errno cimport EAGAIN, EINTR, errno


cdef enum:
    RECEIVE_BYTES = 65536
    RECEIVE_BYTES_MAX = 1048576
    TLS_RECORD_BYTES = 16384
    WRITES_MASK = 15


cdef class Sockets:
    cdef readonly BrokerLoop hot
    cdef readonly object epoll
    cdef readonly int epoll_fd
    cdef list conns
    cdef dict listeners
    cdef list paused
    cdef bytearray input
    cdef object view
    cdef unsigned char* data
    cdef Py_ssize_t capacity
    cdef dict tls_sockets
    cdef set shared
    cdef list undecrypted
    cdef int handshakes
    cdef int handshakes_max
    cdef int accepts_max
    cdef object flush(self)
    cdef object check_fence(self)
    cdef object flush_conn(self, LoopConnection conn, bint writable)
    cdef object fill_output(self, LoopConnection conn)
    cdef bint send_output(self, LoopConnection conn) except -1
    cdef bint send_unsent(self, LoopConnection conn) except -1
    cdef bint send_tls(self, LoopConnection conn) except -1
    cdef object set_interest(self, LoopConnection conn, bint blocked)
    cdef object arm(self, LoopConnection conn, unsigned int wanted)
    cdef object register(self, LoopConnection conn)
    cdef object read_first_bytes(self, LoopConnection conn)
    cdef object begin_tls(self, LoopConnection conn)
    cdef object handshake(self, LoopConnection conn)
    cdef object fail(self, LoopConnection conn)
    cdef object end(self, LoopConnection conn, bint blocked)
    cdef object drop(self, LoopConnection conn)
    cdef object end_shared(self, int fd)
    cdef object accept(self, int fd)
    cdef object sweep_sockets(self, long long now_ns)
    cdef object close_sockets(self)
