# C form of traces.py.
from edge.loop.layout cimport FAILURE
from edge.loop.state cimport LoopConnection, HotState, BackloggedMessage, OutboundWindow, PublishView, LoopPeer, PendingAck, Route


cdef object note_event(HotState hot, str stage, LoopConnection conn, PublishView packet, int identifier, int qos, object detail)
cdef object trace_sent(HotState hot, LoopConnection publisher, Route route, PublishView packet, PendingAck message, int retained_partition)
cdef object trace_copy(HotState hot, PublishView packet, PendingAck copy, bytes share)
cdef object trace_refused(HotState hot, LoopConnection conn, Route route, PublishView packet)
cdef object trace_answered(HotState hot, LoopConnection conn, PendingAck message)
cdef object trace_written(
    HotState hot, LoopConnection conn, PublishView packet, int qos, int identifier, unsigned long long session_seq
)
cdef object trace_waiting(HotState hot, LoopConnection conn, PublishView packet, int qos)
cdef object trace_drained(HotState hot, LoopConnection conn, bytes topic, int qos, object origin)
cdef object trace_acked(HotState hot, LoopConnection conn, int packet_type, int identifier, int reason_code)
cdef object trace_accepted(HotState hot, LoopPeer peer, PublishView packet)
cdef object trace_dropped(HotState hot, LoopConnection conn, str reason, bytes topic, PublishView packet)
