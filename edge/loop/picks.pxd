# C form of picks.py.
from edge.loop.memory cimport release_pending
from edge.loop.notes cimport note_drop
from edge.loop.records cimport load_record
from edge.loop.state cimport LoopConnection, LoopState, InboundPublish, OutboundWindow, PublishView


cdef int keep_pick(OutboundWindow outbound, int qos, bytes share, bytes record, long long since_ns) except -1
cdef int drop_pick(OutboundWindow outbound, int packet_identifier) except -1
cdef list take_unacked_picks(LoopState hot, LoopConnection conn)
