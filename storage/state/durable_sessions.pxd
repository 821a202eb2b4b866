# C types of storage/state/durable_sessions.py: one of these for each message in flight. Measured by bench/storage_core.py.
cimport cython


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
