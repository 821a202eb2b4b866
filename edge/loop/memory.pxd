# C form of memory.py.
from edge.loop.state cimport LoopConnection, LoopState, BackloggedMessage, OutboundWindow


cdef enum:
    KEPT_BYTES = 160


cdef int count_held(LoopState hot, LoopConnection conn) except -1
cdef int add_holder(LoopState hot, BackloggedMessage kept) except -1
cdef int remove_holder(LoopState hot, BackloggedMessage kept) except -1
cdef int release_pending(LoopState hot, LoopConnection conn) except -1
cdef Py_ssize_t share_of(LoopConnection conn) except -1
