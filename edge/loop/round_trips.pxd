# C form of round_trips.py.
cdef enum:
    BUCKETS = 25
    COUNT_MAX = 255


cdef class RoundTrips:
    cdef unsigned char counts[25]
    cdef readonly int packet
    cdef long long since_ns


cdef object end_trip(RoundTrips trips, long long now_ns)
