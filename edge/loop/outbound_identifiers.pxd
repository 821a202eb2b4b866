# C form of outbound_identifiers.py.
from edge.loop.picks cimport drop_pick
from edge.loop.round_trips cimport RoundTrips
from edge.loop.state cimport OutboundWindow


cdef int take_identifier(OutboundWindow outbound, int state, long long now_ns) except -1
cdef bint free_identifier(OutboundWindow outbound, int packet_identifier) except -1
cdef int state_of(OutboundWindow outbound, int packet_identifier) except -1
cdef bint is_of_flow(int state, int packet_type) noexcept
cdef object set_state(OutboundWindow outbound, int packet_identifier, int state)
