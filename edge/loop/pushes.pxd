# C form of pushes.py.
from edge.loop.buffers cimport Buffer, append_bytes, get16, get32, get64, put16, put32, put64, reserve
from edge.loop.deliver cimport write_copy
from edge.loop.encode cimport publish_bytes
from edge.loop.layout cimport (
    FAILURE, NOT_AUTHORIZED, PACKET_TOO_LARGE, PROTOCOL_ERROR, PUSH, PUSH_ACK_BYTES, PUSH_ACK_CODE_AT,
    PUSH_ACK_OWNER_EPOCH_AT, PUSH_ACK_PARTITION_EPOCH_AT, PUSH_ACK_SESSION_AT, PUSH_ACK_SESSION_SEQ_AT, PUSH_ACK_TYPE_AT, PUSH_DUP_FLAG,
    PUSH_EXPIRY_AT, PUSH_FLAGS_AT, PUSH_HEAD, PUSH_IDENTIFIER_AT, PUSH_OWNER_EPOCH_AT, PUSH_PARTITION_EPOCH_AT,
    PUSH_PAYLOAD_BYTES_AT, PUSH_PROPERTY_BYTES_AT, PUSH_PUBREL_FLAG, PUSH_SESSION_AT, PUSH_SESSION_SEQ_AT,
    PUSH_TOPIC_BYTES_AT, PUSH_TRACED_FLAG, QOS_BITS, RETAIN_FLAG
)
from edge.loop.notes cimport note_drop
from edge.loop.outbound_identifiers cimport is_of_flow
from edge.loop.output cimport answer_unknown, mark_dirty, note_high, pending_output, output_of, write_short
from edge.loop.batches cimport push_acks_of
from edge.loop.round_trips cimport RoundTrips, end_trip
from edge.loop.state cimport LoopConnection, LoopState, OutboundWindow, PublishView, LoopPeer
from edge.loop.traces cimport trace_acked, trace_written


cdef enum:
    ANSWERED_MAX = 512
    WRITTEN = 2
    RECEIVED = 4
    RELEASED = 3


cdef object receive_pushes(LoopState hot, LoopPeer peer, bytes payload)
cdef int handle_push_ack(LoopState hot, LoopConnection conn, int packet_type, int packet_identifier, int reason_code) except -1
cdef object send_push_ack(
    LoopState hot, LoopConnection conn, unsigned long partition_epoch, unsigned long long session_seq, int packet_type,
    int reason_code
)
cdef object flush_push_acks(LoopState hot, LoopConnection conn)


# private
cdef object _push_qos0(LoopState hot, LoopConnection conn, PublishView packet, int flags)
cdef bint _needs_authorization(LoopState hot, LoopConnection conn, PublishView packet) except -1
cdef OutboundWindow _pushes_of(LoopConnection conn)
cdef object _push(
    LoopState hot, LoopConnection conn, PublishView packet, int flags, unsigned long partition_epoch, unsigned long long session_seq, int identifier
)
cdef object _push_release(
    LoopState hot, LoopConnection conn, unsigned long partition_epoch, unsigned long long session_seq, int identifier
)
cdef object _remember(OutboundWindow outbound, unsigned long long session_seq, int packet_type)
cdef object _put_push_ack(
    Buffer record, LoopConnection conn, unsigned long partition_epoch, unsigned long long session_seq, int packet_type, int reason_code
)
