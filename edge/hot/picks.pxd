# C form of picks.py.
from edge.hot.memory cimport forget_waiting
from edge.hot.notes cimport note_drop
from edge.hot.records cimport load_record
from edge.hot.state cimport LoopConnection, HotState, InboundPublish, OutboundWindow, PublishView


cdef int keep_pick(OutboundWindow outbound, int qos, bytes share, bytes record, long long since_ns) except -1
cdef int drop_pick(OutboundWindow outbound, int packet_identifier) except -1
cdef list unfinished_picks(HotState hot, LoopConnection conn)
