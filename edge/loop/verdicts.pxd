# C form of verdicts.py.
from edge.loop.layout cimport NOT_AUTHORIZED, TOPIC_NAME_INVALID
from edge.loop.state cimport LoopConnection, LoopState, Route


cdef enum:
    PLAIN = 0x07
    RETAINED_SHIFT = 3
    OF_CLASS = 0x40
    TOO_DEEP = 0x80


cdef Route authorize_route(LoopState hot, LoopConnection conn, Route route, bytes topic, int qos, bint retain)


# private
cdef int _verdicts(LoopState hot, LoopConnection conn, Route route, bytes topic, bint retain) except -1
cdef int _authorize(LoopState hot, LoopConnection conn, Route route, bytes topic, bint retain) except -1
cdef void _renew(LoopState hot, Route route) noexcept
