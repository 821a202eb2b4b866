# C form of reported_origins.py.
from edge.loop.buffers cimport Buffer, copy_bytes, put16, reserve
from edge.loop.encode cimport put_varint, varint_bytes
from edge.loop.layout cimport FAILURE
from edge.loop.output cimport output_of, write_short
from edge.loop.state cimport LoopConnection, LoopState, PendingAck


cdef object note_origin(LoopState hot, LoopConnection conn, PendingAck message)
cdef object forget_origin(LoopConnection conn, int packet_identifier)
cdef int write_ack_with_origin(LoopState hot, LoopConnection conn, int first, int packet_identifier, int reason_code) except -1
