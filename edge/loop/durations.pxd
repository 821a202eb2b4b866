# C form of durations.py.
cdef enum:
    LAST = 24


cdef class Durations:
    cdef unsigned long long counts[25]
    cdef readonly long long sum_ns


cdef object count_durations(Durations durations, long long ns, unsigned long long number)
cdef object count_duration(Durations durations, long long ns)
