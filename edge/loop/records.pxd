# C form of records.py.
from edge.loop.buffers cimport (
    Buffer, copy_bytes, copy_span, get16, get32, get64, put16, put32, put64, reserve, take_bytes
)
from edge.loop.encode cimport copy_plain
from edge.loop.layout cimport (
    MESSAGE_EXPIRY_AT, MESSAGE_FLAGS_AT, MESSAGE_HEAD, MESSAGE_ORIGIN_A_AT, MESSAGE_ORIGIN_B_AT,
    MESSAGE_ORIGIN_KIND_AT, MESSAGE_OWNER_EPOCH_AT, MESSAGE_PARTITIONS_AT, MESSAGE_PAYLOAD_BYTES_AT,
    MESSAGE_PROPERTY_BYTES_AT, MESSAGE_RECORD, MESSAGE_SESSION_AT, MESSAGE_TAG_AT, MESSAGE_TOPIC_BYTES_AT,
    MESSAGE_VERSION_AT, NO_EXPIRY, OWNER_FLAG, QOS_BITS, RETAIN_FLAG, TRACED_FLAG
)
from edge.loop.state cimport LoopState, PendingAck, PublishView


cdef enum:
    SECOND_NS = 1000000000


cdef bytes record_of(LoopState hot, PublishView packet, unsigned long long tag)
cdef bytes with_owner(bytes record, bytes owner_block)
cdef bytes topic_of(bytes record)
cdef bytes with_tag(LoopState hot, bytes record, unsigned long long tag)
cdef object load_record(PublishView packet, bytes record)
cdef bytes with_remaining_expiry(LoopState hot, PendingAck message)
