# C form of traces.py.
from edge.loop.layout cimport FAILURE
from edge.loop.state cimport LoopConnection, LoopState, BackloggedMessage, OutboundWindow, PublishView, LoopPeer, PendingAck, Route


cdef object note_event(LoopState hot, str stage, LoopConnection conn, PublishView packet, int identifier, int qos, object detail)
cdef object trace_sent(LoopState hot, LoopConnection publisher, Route route, PublishView packet, PendingAck message, int retained_partition)
cdef object trace_copy(LoopState hot, PublishView packet, PendingAck copy, bytes share)
cdef object trace_refused(LoopState hot, LoopConnection conn, Route route, PublishView packet)
cdef object trace_answered(LoopState hot, LoopConnection conn, PendingAck message)
cdef object trace_written(
    LoopState hot, LoopConnection conn, PublishView packet, int qos, int identifier, unsigned long long session_seq
)
cdef object trace_waiting(LoopState hot, LoopConnection conn, PublishView packet, int qos)
cdef object trace_drained(LoopState hot, LoopConnection conn, bytes topic, int qos, object origin)
cdef object trace_acked(LoopState hot, LoopConnection conn, int packet_type, int identifier, int reason_code)
cdef object trace_accepted(LoopState hot, LoopPeer peer, PublishView packet)
cdef object trace_dropped(LoopState hot, LoopConnection conn, str reason, bytes topic, PublishView packet)
