# C form of parse.py.
from edge.loop.acks cimport ACK_WAITS, acknowledged
from edge.loop.buffers cimport Buffer, get16, read_varint, reserve, same_bytes, varint_end
from edge.loop.encode cimport walk_properties
from edge.loop.fanout cimport fan_out_run
from edge.loop.inbound cimport fail, find_route, park_if_full, single
from edge.loop.layout cimport MALFORMED_PACKET, PACKET_TOO_LARGE, PROTOCOL_ERROR
from edge.loop.parked_input cimport prefetch
from edge.loop.notes cimport note_denied
from edge.loop.output cimport mark_dirty, output_of, pending_output
from edge.loop.shared_rate_limits cimport charge_purse
from edge.loop.state cimport LoopConnection, HotState, PublishView, PARK_HANDLER, PARK_OUTPUT, PARK_PIPELINE, PARK_RATE, Route


cdef enum:
    CORE_BYTES = 262144
    PICK_COPIES = 200


cdef Py_ssize_t parse(HotState hot, LoopConnection conn, unsigned char* data, Py_ssize_t at, Py_ssize_t end) except -1
cdef bint park_unread(HotState hot, LoopConnection conn) except -1
cdef object count_bytes(HotState hot, LoopConnection conn, long long count)
cdef object pause(HotState hot, LoopConnection conn, long long paid_ns)


# private
cdef Py_ssize_t _prefetch(HotState hot, LoopConnection conn, unsigned char* data, Py_ssize_t at, Py_ssize_t end) except -1
cdef object _cut(HotState hot, LoopConnection conn)
cdef bint _waits_for_pipeline(HotState hot, LoopConnection conn, int first) except? -1
cdef object _count_rate(HotState hot, LoopConnection conn, long long count)
cdef int _wrong_start(int first) except -1
cdef Py_ssize_t _end_run(
    HotState hot, LoopConnection conn, Route route, unsigned char* data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t packet_max, Py_ssize_t count,
    Py_ssize_t payload
)
cdef object _count(HotState hot, Py_ssize_t count, Py_ssize_t payload)
cdef bint _other(
    HotState hot, LoopConnection conn, int first, unsigned char* data, Py_ssize_t at, Py_ssize_t body, Py_ssize_t stop
)
cdef bint _ping(HotState hot, LoopConnection conn, int first, Py_ssize_t length)
