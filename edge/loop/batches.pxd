# C form of batches.py.
from edge.loop.buffers cimport Buffer, copy_bytes, copy_span, give_buffer, put16, put32, reserve, take_buffer, take_bytes
from edge.loop.layout cimport (
    FRAME_BYTES, MESSAGE_FLAGS_AT, MESSAGE_HEAD, MESSAGE_PARTITIONS_AT, PLACE_BYTES, PLACE_EPOCH_AT, PUBLISH,
    PUBLISH_ACK, PUBLISH_ACK_BYTES, PUSH_ACK, PUSH_ACK_BYTES, RUN_FLAGS_AT, RUN_HEAD, RUN_PACKET_BYTES_AT,
    RUN_RECORD, RUN_TOPIC_BYTES_AT, RUN_VERSION_AT, SHARE_FLAG
)
from edge.loop.output cimport mark_dirty, unpark
from edge.loop.state cimport LoopState, PARK_PEER, LoopPeer


cdef enum:
    BATCH_BYTES = 1048576


cdef object append_run(LoopState hot, LoopPeer peer, int version, bytes topic, unsigned char* data, Py_ssize_t start, Py_ssize_t count)
cdef object append_record(LoopState hot, LoopPeer peer, bytes record, object partitions, bytes share)
cdef object list_peer(LoopState hot, LoopPeer peer)
cdef Buffer publish_acks_of(LoopState hot, LoopPeer peer)
cdef Buffer push_acks_of(LoopState hot, LoopPeer peer)
cdef object flush_batches(LoopState hot)
cdef object flush_peer(LoopState hot, LoopPeer peer)
cdef object send_frame(LoopState hot, LoopPeer peer, int kind, bytes payload, object messages)
cdef object update_capacity(LoopState hot, LoopPeer peer)
cdef object release_peer(LoopState hot, LoopPeer peer)


# private
cdef Buffer _batch_of(LoopState hot, LoopPeer peer)
cdef object _appended(LoopState hot, LoopPeer peer, Py_ssize_t count)
cdef object _cut_batch(LoopState hot, LoopPeer peer, Buffer batch, Py_ssize_t count)
cdef object _send_acks(LoopState hot, LoopPeer peer, int kind, Py_ssize_t record_bytes, bytes payload)
cdef bytes _payload(LoopState hot, Buffer batch)
cdef object _flush_publish(LoopState hot, LoopPeer peer)
