# C form of shared_rate_limits.py.
cdef class SharedRateLimit:
    cdef readonly long long next_message_ns
    cdef readonly long long next_byte_ns
    cdef readonly long long next_filter_ns
    cdef readonly long long publish_gap_ns
    cdef readonly long long byte_gap_ps
    cdef readonly long long filter_gap_ns


cdef long long consume_rates(SharedRateLimit purse, long long now_ns, long long messages, long long octets) except -1
cdef long long consume_filters(SharedRateLimit purse, long long now_ns, long long filters) except -1
