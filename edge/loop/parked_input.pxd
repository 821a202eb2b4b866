# C form of parked_input.py.
from edge.loop.buffers cimport Buffer, get16, read_varint, reserve, varint_end
from edge.loop.encode cimport valid_topic
from edge.loop.output cimport output_of, pending_output
from edge.loop.read_ahead cimport ReadAhead
from edge.loop.state cimport LoopConnection, LoopState, PARK_OUTPUT


cdef enum:
    PIECE_BYTES = 65536
    PREFETCH_TOPICS_MAX = 500


cdef bint may_read_ahead(LoopState hot, LoopConnection conn) except -1
cdef int keep_piece(LoopState hot, LoopConnection conn, bytes data) except -1
cdef ReadAhead ahead_of(LoopConnection conn)
cdef object count_parsed(LoopConnection conn, Py_ssize_t count)
cdef int next_piece(LoopState hot, LoopConnection conn) except -1
cdef object drop_pieces(LoopState hot, LoopConnection conn)
cdef int answer_pings(LoopState hot, LoopConnection conn) except -1
cdef object prefetch(LoopState hot, LoopConnection conn, unsigned char* data, Py_ssize_t at, Py_ssize_t end)


# private
cdef object _count(LoopState hot, ReadAhead ahead, Py_ssize_t count)
cdef object _answer(LoopState hot, LoopConnection conn)
cdef Py_ssize_t _packet_end(LoopConnection conn, unsigned char* data, Py_ssize_t at, Py_ssize_t end) except -3
cdef long long _messages_allowed(LoopState hot, LoopConnection conn)
