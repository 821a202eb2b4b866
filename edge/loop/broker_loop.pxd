# C form of broker_loop.py.
from edge.loop.ack_rows cimport flush_rows
from edge.loop.batches cimport flush_batches
from edge.loop.excess cimport update_excess_timer
from edge.loop.layout cimport BY_PEER, KEEP_ALIVE_TIMEOUT, RECEIVE_MAXIMUM_EXCEEDED, UNSPECIFIED_ERROR
from edge.loop.outboxes cimport pump_outboxes
from edge.loop.output cimport end_lag, mark_dirty, unpark
from edge.loop.peering cimport Peering
from edge.loop.state cimport LoopConnection, LoopState, PARK_HANDLER, PARK_RATE


cdef class BrokerLoop(Peering):
    cdef readonly Py_ssize_t sweep_left
    cpdef object begin_turn(self, long long now_ns)
    cpdef object end_turn(self, long long now_ns)
    cpdef object begin_sweep(self)
    cpdef object sweep_some(self, long long now_ns, Py_ssize_t count)
    cdef object end_fence(self, long long now_ns)
    cdef bint is_too_slow(self, LoopConnection conn, long long now_ns) except -1
