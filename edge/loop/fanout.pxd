# C form of fanout.py.
from edge.loop.acks cimport destination_done, new_message
from edge.loop.deliver cimport deliver_local, deliver_run, deliver_to
from edge.loop.encode cimport load_plain
from edge.loop.layout cimport QUOTA_EXCEEDED, SERVER_BUSY, SERVER_UNAVAILABLE
from edge.loop.notes cimport note_drop, note_drops
from edge.loop.origins cimport note_pick, take_origin, was_picked
from edge.loop.batches cimport append_record, append_run
from edge.loop.outboxes cimport find_targets, send_to_edge, send_to_partition, send_to_partitions
from edge.loop.records cimport load_record, with_owner, record_of, with_tag, topic_of
from edge.loop.picks cimport keep_pick
from edge.loop.state cimport LoopConnection, ShareGroup, LoopState, InboundPublish, PendingAck, OutboundWindow, PublishView, LoopPeer, Remote, Route, Sub
from edge.loop.traces cimport trace_copy, trace_sent


cdef enum:
    PICK_BYTES = 4096


cdef object fan_out(LoopState hot, LoopConnection publisher, Route route, PublishView packet, PendingAck message, int retained_partition)
cdef object fan_out_run(
    LoopState hot, LoopConnection publisher, Route route, int version, unsigned char* data, Py_ssize_t start, Py_ssize_t end,
    Py_ssize_t packet_max, Py_ssize_t count
)
cdef object handle_refusal(LoopState hot, PendingAck copy, int reason_code)
cdef object deliver_pick(LoopState hot, Sub sub, PublishView packet, bytes share)
cdef object redispatch(LoopState hot, PendingAck copy, object chosen)


# private
cdef object _send_owned(LoopState hot, Route route, bytes record, PendingAck message, int retained_partition)
cdef object _of_session(PublishView packet, LoopConnection publisher)
cdef object _pick(LoopState hot, LoopConnection publisher, Route route, PublishView packet, PendingAck message, ShareGroup group)
cdef object _send_pick(LoopState hot, Remote remote, bytes record, PendingAck copy)
