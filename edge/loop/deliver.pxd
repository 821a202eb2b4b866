# C form of deliver.py.
from edge.loop.buffers cimport Buffer, append_bytes, append_span, put16, put32, read_varint, reserve, varint_end
from edge.loop.encode cimport load_plain, publish_bytes, write_publish
from edge.loop.held_copies cimport hold_copies, records_of_run
from edge.loop.layout cimport NO_EXPIRY
from edge.loop.memory cimport add_holder, remove_holder
from edge.loop.notes cimport note_drop, note_drops
from edge.loop.output cimport note_high, pending_output, output_of, send_now, wait_for
from edge.loop.outbound_identifiers cimport take_identifier
from edge.loop.picks cimport keep_pick
from edge.loop.records cimport record_of
from edge.loop.state cimport LoopConnection, LoopState, BackloggedMessage, OutboundWindow, PublishView, Route, Sub
from edge.loop.traces cimport trace_drained, trace_waiting, trace_written


cdef enum:
    SECOND_NS = 1000000000
    ALIASED_BYTES_MIN = 5
    ALIAS_BYTES = 6


cdef object deliver_run(
    LoopState hot, LoopConnection publisher, Route route, int version, unsigned char* data, Py_ssize_t start, Py_ssize_t end,
    Py_ssize_t packet_max, Py_ssize_t count
)
cdef bint is_excepted(Sub sub, LoopConnection publisher) noexcept
cdef object deliver_copies(LoopState hot, LoopConnection publisher, Sub sub, PublishView packet)
cdef Py_ssize_t convert_run(
    LoopState hot, bint five, bytes topic, unsigned char* data, Py_ssize_t start, Py_ssize_t end, bint to_five,
    bytes identifiers, Py_ssize_t size_max
) except -1
cdef object write_copy(
    LoopState hot, LoopConnection conn, PublishView packet, int qos, bint retain, bint dup, int packet_identifier, bytes identifiers
)
cdef object deliver_local(LoopState hot, LoopConnection publisher, Route route, PublishView packet)
cdef bint deliver_to(LoopState hot, LoopConnection conn, PublishView packet, int qos, bint retain, bytes identifiers) except -1
cdef Py_ssize_t _payload_at(bytes encoded, Py_ssize_t at, bint five) except -1
cdef object drain_pending(LoopState hot, LoopConnection conn)
cdef bint park_if_slow(LoopState hot, LoopConnection publisher, Route route) except -1


# private
cdef bint _hold_each(LoopState hot, LoopConnection publisher, Sub sub, bytes topic, object records) except -1
cdef object _deliver_copies_of_run(
    LoopState hot, LoopConnection publisher, Sub sub, bytes topic, bint five, unsigned char* data, Py_ssize_t start, Py_ssize_t end
)
cdef object _deliver_aliased(
    LoopState hot, LoopConnection conn, bytes topic, bint five, unsigned char* data, Py_ssize_t start, Py_ssize_t end,
    bytes identifiers
)
cdef object _append_run(LoopState hot, LoopConnection conn, unsigned char* data, Py_ssize_t start, Py_ssize_t count)
cdef bint _pend(
    LoopState hot, OutboundWindow outbound, PublishView packet, bint five, int qos, bint retain, bytes identifiers, Py_ssize_t size
)
cdef object _pending_entry(LoopState hot, PublishView packet, bint five, Py_ssize_t size)
cdef object _send_pending(
    LoopState hot, LoopConnection conn, OutboundWindow outbound, bytes encoded, Py_ssize_t identifier_at, Py_ssize_t expiry_at, long long waited_s
)
