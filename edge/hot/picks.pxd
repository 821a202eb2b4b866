# C form of picks.py.
from edge.hot.memory cimport forget_waiting
from edge.hot.notes cimport note_drop
from edge.hot.records cimport load_record
from edge.hot.state cimport Conn, HotState, Inbound, Outbound, Packet


cdef int keep_pick(Outbound outbound, int qos, bytes share, bytes record, long long since_ns) except -1
cdef int drop_pick(Outbound outbound, int packet_identifier) except -1
cdef list unfinished_picks(HotState hot, Conn conn)
