# C form of forwarded.py.
from edge.loop.acks cimport destination_done, finish_acked_frames
from edge.loop.buffers cimport Buffer, get16, get32, get64, put16, put64, read_varint, reserve, varint_end
from edge.loop.deliver cimport deliver_local, deliver_run
from edge.loop.encode cimport load_plain, walk_properties
from edge.loop.fanout cimport deliver_pick, handle_refusal
from edge.loop.layout cimport (
    AT_AN_EDGE, FAILURE, HELLO, MESSAGE_EXPIRY_AT, MESSAGE_FLAGS_AT, MESSAGE_HEAD, MESSAGE_ORIGIN_A_AT,
    MESSAGE_ORIGIN_B_AT, MESSAGE_ORIGIN_KIND_AT, MESSAGE_PARTITIONS_AT, MESSAGE_PAYLOAD_BYTES_AT,
    MESSAGE_PROPERTY_BYTES_AT, MESSAGE_RECORD, MESSAGE_TAG_AT, MESSAGE_TOPIC_BYTES_AT, MESSAGE_VERSION_AT,
    NO_MEMBER, PLACE_BYTES, PUBLISH, PUBLISH_ACK, PUBLISH_ACK_BYTES, PUBLISH_ACK_CODE_AT, PUBLISH_ACK_PARTITION_AT,
    PUBLISH_ACK_TAG_AT, PUSH, QOS_BITS, QUOTA_EXCEEDED, RETAIN_FLAG, RUN_HEAD, RUN_PACKET_BYTES_AT, RUN_RECORD,
    RUN_TOPIC_BYTES_AT, RUN_VERSION_AT, SERVER_BUSY, SERVER_UNAVAILABLE, SHARE_FLAG,
    SUPERSEDED, TRACED_FLAG
)
from edge.loop.notes cimport note_drop
from edge.loop.origins cimport take_origin, was_picked
from edge.loop.output cimport mark_dirty
from edge.loop.batches cimport update_capacity, publish_acks_of
from edge.loop.outboxes cimport leave_outbox
from edge.loop.pushes cimport receive_pushes
from edge.loop.refused_topics cimport note_refused
from edge.loop.routes cimport local_route
from edge.loop.state cimport LoopConnection, LoopState, PendingAck, PartitionOutbox, PublishView, PARK_HANDLER, LoopPeer, Route, Sub
from edge.loop.traces cimport trace_accepted


cdef enum:
    UNACKED_BYTES_MAX = 65536


cdef object receive_link(LoopState hot, LoopConnection conn, bytes data)
cdef object receive_publish(LoopState hot, LoopPeer peer, bytes payload)
cdef object receive_publish_acks(LoopState hot, LoopPeer peer, bytes payload)


# private
cdef object _receive_hello(LoopState hot, LoopConnection conn, bytes data)
cdef Py_ssize_t _receive_run(LoopState hot, bytes payload, unsigned char* data, Py_ssize_t at, Py_ssize_t end)
cdef Py_ssize_t _checked_packet(LoopState hot, unsigned char* data, Py_ssize_t at, Py_ssize_t end, bint five)
cdef Py_ssize_t _receive_message(
    LoopState hot, LoopPeer peer, bytes payload, unsigned char* data, Py_ssize_t at, Py_ssize_t end
)
cdef object _receive_pick(LoopState hot, LoopPeer peer, PublishView packet, bytes share, unsigned long long tag)
cdef PartitionOutbox _asked_before(LoopState hot, LoopPeer peer, PartitionOutbox outbox, unsigned long long tag, int code)
cdef object _failed(LoopState hot, PendingAck message, int code)
cdef object _refuse_full(LoopState hot, PendingAck message)
cdef object _superseded(LoopState hot, PendingAck message)
