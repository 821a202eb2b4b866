# C form of pacing.py.


cdef class Pacing:
    cdef long long ceiling_ns
    cdef readonly int state
    cdef readonly long long switched_on
    cdef long long iterations
    cdef unsigned long long messages_from
    cdef long long since_ns
    cdef long long blocked_from_ns
    cdef double plain_ns
    cdef double plain_per_ns
    cdef long long backoff
    cdef long long keep


cdef long long gap_ns(Pacing pacing) noexcept
cdef int after_iteration(Pacing pacing, long long now_ns, unsigned long long messages, long long blocked_ns) except -1


# private
cdef object _enter(
    Pacing pacing, int state, long long iterations, long long now_ns, unsigned long long messages, long long blocked_ns
)
