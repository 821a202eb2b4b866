# C form of peers.py.
from edge.hot.buffers cimport (
    Buffer, copy_bytes, copy_span, get16, get32, get64, give_buffer, put16, put32, put64,
    reserve, take_buffer, take_bytes
)
from edge.hot.encode cimport copy_plain
from edge.hot.layout cimport (
    FRAME_BYTES, MESSAGE_EXPIRY_AT, MESSAGE_FLAGS_AT, MESSAGE_HEAD, MESSAGE_ORIGIN_A_AT, MESSAGE_ORIGIN_B_AT,
    MESSAGE_ORIGIN_KIND_AT, MESSAGE_OWNER_EPOCH_AT, MESSAGE_PARTITIONS_AT, MESSAGE_PAYLOAD_BYTES_AT,
    MESSAGE_PROPERTY_BYTES_AT, MESSAGE_RECORD, MESSAGE_SESSION_AT, MESSAGE_TAG_AT, MESSAGE_TOPIC_BYTES_AT,
    MESSAGE_VERSION_AT, NO_EXPIRY, PLACE_BYTES, PLACE_EPOCH_AT, PUBLISH, PUBLISH_ACK, PUBLISH_ACK_BYTES, PUSH_ACK,
    PUSH_ACK_BYTES, QOS_BITS, REPEAT_FLAG, RETAIN_FLAG, RUN_FLAGS_AT, RUN_HEAD, RUN_PACKET_BYTES_AT, RUN_RECORD,
    RUN_TOPIC_BYTES_AT, RUN_VERSION_AT, SHARE_FLAG
)
from edge.hot.output cimport mark_dirty, unpark
from edge.hot.state cimport Conn, HotState, Message, Outbox, Packet, PARK_PEER, Peer, Route


cdef enum:
    BATCH_BYTES = 1048576
    SECOND_NS = 1000000000


cdef object append_run(HotState hot, Peer peer, int version, bytes topic, unsigned char* data, Py_ssize_t start, Py_ssize_t count)
cdef bytes record_of(HotState hot, Packet packet, unsigned long long tag)
cdef bytes renumbered(HotState hot, bytes record, unsigned long long tag)
cdef object append_record(HotState hot, Peer peer, bytes record, int flags, object partitions, bytes share)
cdef object load_record(Packet packet, bytes record)
cdef object find_targets(HotState hot, Route route)
cdef bint route_is_full(HotState hot, Conn publisher, Route route) except -1
cdef object send_to_edge(HotState hot, Peer peer, bytes record, Message message)
cdef object send_to_partitions(HotState hot, Route route, bytes record, Message message)
cdef object send_to_partition(HotState hot, int partition, bytes record, Message message, bytes share)
cdef object flush_batches(HotState hot)
cdef object flush_peer(HotState hot, Peer peer)
cdef object send_frame(HotState hot, Peer peer, int kind, bytes payload, object messages)
cdef object note_room(HotState hot, Peer peer)
cdef object release_peer(HotState hot, Peer peer)
cdef object pump_outboxes(HotState hot)
cdef Buffer publish_acks_of(HotState hot, Peer peer)
cdef Buffer push_acks_of(HotState hot, Peer peer)
cdef object list_peer(HotState hot, Peer peer)
cdef object leave_outbox(HotState hot, Message message)
cdef object note_former(HotState hot, Outbox outbox, Peer former)


# private
cdef bint _wait_for_peer(Conn publisher, Peer peer)
cdef Buffer _batch_of(HotState hot, Peer peer)
cdef object _appended(HotState hot, Peer peer, Py_ssize_t count)
cdef Peer _primary_of(HotState hot, int partition)
cdef Outbox _outbox(HotState hot, int partition)
cdef object _keep(HotState hot, Outbox outbox, bytes record, Message message)
cdef bint _pump(HotState hot, int partition, Outbox outbox)
cdef bytes _aged(HotState hot, Message message)
cdef bytes _payload(HotState hot, Buffer batch)
cdef object _cut_batch(HotState hot, Peer peer, Py_ssize_t count)
cdef object _send_acks(HotState hot, Peer peer, int kind, Py_ssize_t record_bytes, bytes payload)
cdef object _flush_publish(HotState hot, Peer peer)
