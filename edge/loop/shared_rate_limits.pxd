# C form of purses.py.
cdef class SharedRateLimit:
    cdef readonly long long paid_ns
    cdef readonly long long bytes_paid_ns
    cdef readonly long long asked_paid_ns
    cdef readonly long long publish_gap_ns
    cdef readonly long long byte_gap_ps
    cdef readonly long long asked_gap_ns


cdef long long charge_purse(SharedRateLimit purse, long long now_ns, long long messages, long long octets) except -1
cdef long long charge_asked(SharedRateLimit purse, long long now_ns, long long filters) except -1
