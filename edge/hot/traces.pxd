# C form of traces.py.
from edge.hot.layout cimport FAILURE
from edge.hot.state cimport Conn, HotState, Kept, Outbound, Packet, Peer, PendingAck, Route


cdef object note_event(HotState hot, str stage, Conn conn, Packet packet, int identifier, int qos, object detail)
cdef object trace_sent(HotState hot, Conn publisher, Route route, Packet packet, PendingAck message, int retained_partition)
cdef object trace_copy(HotState hot, Packet packet, PendingAck copy, bytes share)
cdef object trace_refused(HotState hot, Conn conn, Route route, Packet packet)
cdef object trace_answered(HotState hot, Conn conn, PendingAck message)
cdef object trace_written(
    HotState hot, Conn conn, Packet packet, int qos, int identifier, unsigned long long session_seq
)
cdef object trace_waiting(HotState hot, Conn conn, Packet packet, int qos)
cdef object trace_drained(HotState hot, Conn conn, bytes topic, int qos, object origin)
cdef object trace_acked(HotState hot, Conn conn, int packet_type, int identifier, int reason_code)
cdef object trace_accepted(HotState hot, Peer peer, Packet packet)
cdef object trace_dropped(HotState hot, Conn conn, str reason, bytes topic, Packet packet)
