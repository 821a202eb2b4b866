# C form of told_origins.py.
from edge.loop.buffers cimport Buffer, copy_bytes, put16, reserve
from edge.loop.encode cimport put_varint, varint_bytes
from edge.loop.layout cimport FAILURE
from edge.loop.output cimport output_of, write_short
from edge.loop.state cimport LoopConnection, HotState, PendingAck


cdef object note_origin(HotState hot, LoopConnection conn, PendingAck message)
cdef object forget_origin(LoopConnection conn, int packet_identifier)
cdef int write_told(HotState hot, LoopConnection conn, int first, int packet_identifier, int reason_code) except -1
