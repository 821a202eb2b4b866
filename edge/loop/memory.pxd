# C form of memory.py.
from edge.loop.state cimport LoopConnection, HotState, BackloggedMessage, OutboundWindow


cdef enum:
    KEPT_BYTES = 160


cdef int count_held(HotState hot, LoopConnection conn) except -1
cdef int begin_to_keep(HotState hot, BackloggedMessage kept) except -1
cdef int end_to_keep(HotState hot, BackloggedMessage kept) except -1
cdef int forget_waiting(HotState hot, LoopConnection conn) except -1
cdef Py_ssize_t share_of(LoopConnection conn) except -1
