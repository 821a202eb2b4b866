# C form of batches.py.
from edge.loop.buffers cimport Buffer, copy_bytes, copy_span, give_buffer, put16, put32, reserve, take_buffer, take_bytes
from edge.loop.layout cimport (
    FRAME_BYTES, MESSAGE_FLAGS_AT, MESSAGE_HEAD, MESSAGE_PARTITIONS_AT, PLACE_BYTES, PLACE_EPOCH_AT, PUBLISH,
    PUBLISH_ACK, PUBLISH_ACK_BYTES, PUSH_ACK, PUSH_ACK_BYTES, RUN_FLAGS_AT, RUN_HEAD, RUN_PACKET_BYTES_AT,
    RUN_RECORD, RUN_TOPIC_BYTES_AT, RUN_VERSION_AT, SHARE_FLAG
)
from edge.loop.output cimport mark_dirty, unpark
from edge.loop.state cimport HotState, PARK_PEER, LoopPeer


cdef enum:
    BATCH_BYTES = 1048576


cdef object append_run(HotState hot, LoopPeer peer, int version, bytes topic, unsigned char* data, Py_ssize_t start, Py_ssize_t count)
cdef object append_record(HotState hot, LoopPeer peer, bytes record, object partitions, bytes share)
cdef object list_peer(HotState hot, LoopPeer peer)
cdef Buffer publish_acks_of(HotState hot, LoopPeer peer)
cdef Buffer push_acks_of(HotState hot, LoopPeer peer)
cdef object flush_batches(HotState hot)
cdef object flush_peer(HotState hot, LoopPeer peer)
cdef object send_frame(HotState hot, LoopPeer peer, int kind, bytes payload, object messages)
cdef object note_room(HotState hot, LoopPeer peer)
cdef object release_peer(HotState hot, LoopPeer peer)


# private
cdef Buffer _batch_of(HotState hot, LoopPeer peer)
cdef object _appended(HotState hot, LoopPeer peer, Py_ssize_t count)
cdef object _cut_batch(HotState hot, LoopPeer peer, Buffer batch, Py_ssize_t count)
cdef object _send_acks(HotState hot, LoopPeer peer, int kind, Py_ssize_t record_bytes, bytes payload)
cdef bytes _payload(HotState hot, Buffer batch)
cdef object _flush_publish(HotState hot, LoopPeer peer)
