# C form of parse.py.
from edge.loop.acks cimport ACK_WAITS, handle_ack
from edge.loop.buffers cimport Buffer, get16, read_varint, reserve, same_bytes, varint_end
from edge.loop.encode cimport walk_properties
from edge.loop.fanout cimport fan_out_run
from edge.loop.inbound cimport fail, find_route, park_if_full, handle_publish
from edge.loop.layout cimport MALFORMED_PACKET, PACKET_TOO_LARGE, PROTOCOL_ERROR
from edge.loop.parked_input cimport prefetch
from edge.loop.notes cimport note_denied
from edge.loop.output cimport mark_dirty, output_of, pending_output
from edge.loop.shared_rate_limits cimport consume_rates
from edge.loop.state cimport LoopConnection, LoopState, PublishView, PARK_HANDLER, PARK_OUTPUT, PARK_PIPELINE, PARK_RATE, Route


cdef enum:
    CORE_BYTES = 262144
    PICK_COPIES = 200


cdef Py_ssize_t parse(LoopState hot, LoopConnection conn, unsigned char* data, Py_ssize_t at, Py_ssize_t end) except -1
cdef bint park_unread(LoopState hot, LoopConnection conn) except -1
cdef object count_bytes(LoopState hot, LoopConnection conn, long long count)
cdef object pause(LoopState hot, LoopConnection conn, long long next_allowed_ns)


# private
cdef Py_ssize_t _prefetch(LoopState hot, LoopConnection conn, unsigned char* data, Py_ssize_t at, Py_ssize_t end) except -1
cdef object _yield_iteration(LoopState hot, LoopConnection conn)
cdef bint _waits_for_pipeline(LoopState hot, LoopConnection conn, int first) except? -1
cdef object _count_rate(LoopState hot, LoopConnection conn, long long count)
cdef int _check_first_byte(int first) except -1
cdef Py_ssize_t _end_run(
    LoopState hot, LoopConnection conn, Route route, unsigned char* data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t packet_max, Py_ssize_t count,
    Py_ssize_t payload
)
cdef object _count(LoopState hot, Py_ssize_t count, Py_ssize_t payload)
cdef bint _handle_packet(
    LoopState hot, LoopConnection conn, int first, unsigned char* data, Py_ssize_t at, Py_ssize_t body, Py_ssize_t stop
)
cdef bint _ping(LoopState hot, LoopConnection conn, int first, Py_ssize_t length)
