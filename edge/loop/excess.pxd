# C form of excess.py.
from edge.loop.layout cimport RECEIVE_MAXIMUM_EXCEEDED
from edge.loop.output cimport unpark
from edge.loop.state cimport LoopConnection, LoopState, PendingAck, PARK_QUOTA


cdef enum:
    TAKEN = 0
    WAITS = 1
    EXCEEDED = RECEIVE_MAXIMUM_EXCEEDED


cdef int check_excess(LoopState hot, LoopConnection conn) except -1
cdef object hold_excess(LoopConnection conn, PendingAck message, Py_ssize_t count)
cdef object end_excess(LoopState hot, LoopConnection conn, PendingAck message)
cdef bint update_excess_timer(LoopState hot, LoopConnection conn, long long now_ns) except -1
