# C declarations of session_window.py. Measured by bench/storage_core.py.
cimport cython

from mqtt.packet_identifiers cimport PacketIdentifiers


cdef enum:
    WINDOW_ANY_SIZE = 64
    WINDOW_BYTES = 131072
    SENT = 1


@cython.final
cdef class InFlight:
    cdef public unsigned long long body
    cdef public Py_ssize_t size
    cdef public unsigned int packet_identifier
    cdef public int qos
    cdef public int state
    cdef public bint out
    cdef public bint repeated
    cdef public bint sent
    cdef public bint stored
    cdef public bint traced


cdef class SessionWindow:
    cdef public unsigned long long number
    cdef public unsigned long long owner_epoch
    cdef public unsigned long long deadline
    cdef public unsigned long long incarnation
    cdef public unsigned long long next_seq
    cdef public unsigned long long push_seq
    cdef public unsigned long long behind
    cdef public Py_ssize_t out
    cdef public Py_ssize_t out_bytes
    cdef public Py_ssize_t queue_bytes
    cdef public Py_ssize_t window
    cdef public unsigned int last_identifier
    cdef public bint aged
    cdef public str edge
    cdef public object reads
    cdef public tuple queue_bounds
    cdef public dict _inflight
    cdef public PacketIdentifiers _identifiers
    cdef public object _sizes
    cdef public object _unsent
    cdef public list _acked_rows
    cdef public set _stored_rows


cdef dict inflight_of(SessionWindow session)
cdef PacketIdentifiers identifiers_of(SessionWindow session)
cdef list acked_rows_of(SessionWindow session)
cdef bint is_window_open(SessionWindow session) except -1
cdef bint is_caught_up(SessionWindow session) except -1
cdef InFlight assign_place(SessionWindow session, Py_ssize_t size)
cdef Py_ssize_t release_place(SessionWindow session, unsigned long long session_seq, InFlight flight) except -1
