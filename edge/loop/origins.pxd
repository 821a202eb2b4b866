# C form of origins.py.
from edge.loop.state cimport LoopState


cdef enum:
    SESSION = 1
    WILL = 2


cdef bint take_origin(LoopState hot, int kind, unsigned long long origin_a, unsigned long long origin_b) except -1
cdef bint was_picked(
    LoopState hot, bytes share, int kind, unsigned long long origin_a, unsigned long long origin_b
) except -1
cdef object note_pick(LoopState hot, bytes share, int kind, unsigned long long origin_a, unsigned long long origin_b)
cdef bint _remember(
    LoopState hot, object table, object sender, unsigned long long counter, int size, Py_ssize_t most
) except -1
