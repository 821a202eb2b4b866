# C form of acks.py.
from edge.loop.ack_rows cimport record_ack
from edge.loop.buffers cimport get16, read_varint, varint_end
from edge.loop.deliver cimport drain_pending
from edge.loop.durations cimport count_duration
from edge.loop.encode cimport valid_text
from edge.loop.excess cimport end_excess
from edge.loop.layout cimport (
    FAILURE, IMPLEMENTATION_SPECIFIC_ERROR, MALFORMED_PACKET, NOT_AUTHORIZED, NO_MATCHING_SUBSCRIBERS,
    PACKET_IDENTIFIER_IN_USE, PACKET_IDENTIFIER_NOT_FOUND, PAYLOAD_FORMAT_INVALID, PROTOCOL_ERROR, QUOTA_EXCEEDED,
    SERVER_BUSY, TOPIC_NAME_INVALID, UNSPECIFIED_ERROR
)
from edge.loop.outbound_identifiers cimport free_identifier, is_of_flow, set_state, state_of
from edge.loop.output cimport (
    answer_unknown, mark_dirty, update_capacity, pending_output, output_of, unpark, write_short
)
from edge.loop.outboxes cimport leave_outbox
from edge.loop.pushes cimport handle_push_ack
from edge.loop.round_trips cimport end_trip
from edge.loop.state cimport ANSWER_PENDING, LoopConnection, LoopState, PendingAck, OutboundWindow, PARK_QUOTA, LoopPeer, RELEASE_PENDING
from edge.loop.reported_origins cimport forget_origin, note_origin, write_ack_with_origin
from edge.loop.traces cimport trace_acked, trace_answered


cdef enum:
    ACK_WAITS = 0x100


cdef PendingAck new_message(LoopState hot, int qos, LoopConnection conn, int packet_identifier)
cdef object reserve_ack(LoopConnection conn, PendingAck message)
cdef object write_ack(LoopState hot, LoopConnection conn, int qos, int packet_identifier, int reason_code)
cdef object destination_done(LoopState hot, PendingAck message, int reason_code)
cdef object finish(LoopState hot, PendingAck message)
cdef object finish_acked_frames(LoopState hot, LoopPeer peer, unsigned long long number)
cdef object return_quota(LoopState hot, LoopConnection conn)
cdef int handle_ack(LoopState hot, LoopConnection conn, int first, unsigned char* data, Py_ssize_t at, Py_ssize_t end) except -1


# private
cdef bint _withhold(LoopState hot, LoopConnection conn, PendingAck message) except -1
cdef int _ephemeral(LoopState hot, LoopConnection conn, int first, int identifier, int reason_code) except -1
cdef int _handle_pubrel(LoopState hot, LoopConnection conn, int identifier, int reason_code) except -1
cdef bint _valid_code(int first, int code)
cdef int _ack_properties(unsigned char* data, Py_ssize_t begin, Py_ssize_t end)
