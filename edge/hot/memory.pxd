# C form of memory.py.
from edge.hot.state cimport Conn, HotState, Kept, Outbound


cdef enum:
    KEPT_BYTES = 160


cdef int count_held(HotState hot, Conn conn) except -1
cdef int begin_to_keep(HotState hot, Kept kept) except -1
cdef int end_to_keep(HotState hot, Kept kept) except -1
cdef int forget_waiting(HotState hot, Conn conn) except -1
cdef Py_ssize_t share_of(Conn conn) except -1
