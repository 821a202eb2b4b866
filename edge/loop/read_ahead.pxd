# C form of read_ahead.py.
cdef class ReadAhead:
    cdef object pieces
    cdef readonly Py_ssize_t bytes
    cdef Py_ssize_t scanned
    cdef Py_ssize_t prefetched
    cdef readonly int pings
    cdef bint opaque
