# C form of outbound_identifiers.py.
from edge.hot.picks cimport drop_pick
from edge.hot.round_trips cimport RoundTrips
from edge.hot.state cimport Outbound


cdef int take_identifier(Outbound outbound, int state, long long now_ns) except -1
cdef bint free_identifier(Outbound outbound, int packet_identifier) except -1
cdef int state_of(Outbound outbound, int packet_identifier) except -1
cdef bint is_of_flow(int state, int packet_type) noexcept
cdef object set_state(Outbound outbound, int packet_identifier, int state)
