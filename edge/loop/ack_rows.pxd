# C form of ack_rows.py.
from edge.loop.buffers cimport Buffer, append_bytes, append_decimal, take_bytes
from edge.loop.state cimport LoopState, PendingAck, Route


cdef object record_ack(LoopState hot, PendingAck message)
cdef object flush_rows(LoopState hot)
