# C form of descriptors.py.
from edge.loop.linux cimport (
    CLOCK_BOOTTIME, FIONREAD, SHUT_WR,
    accept_from, clock_gettime, ioctl, shutdown, timespec
)
from libc.errno cimport EAGAIN, ECONNABORTED, ECONNREFUSED, ECONNRESET, EINTR, EPIPE, errno


cdef enum:
    NO_CONNECTION = -2


cpdef long long boot_ns() noexcept
cdef Py_ssize_t bytes_waiting(int fd)
cdef tuple accept_one(int fd, object listener)
cdef bint half_close(int fd) except -1
