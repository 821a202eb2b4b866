# C form of parse.py.
from edge.hot.acks cimport acknowledged, answer, destination_done, enter_gate, new_message
from edge.hot.buffers cimport Buffer, get16, reserve, same_bytes, take_bytes
from edge.hot.deliver cimport route_is_slow
from edge.hot.encode cimport copy_plain, valid_topic, walk_properties
from edge.hot.fanout cimport fan_out, fan_out_run
from edge.hot.output cimport mark_dirty, pending_output, output_of, write_short
from edge.hot.peers cimport route_is_full
from edge.hot.state cimport Conn, HotState, Inbound, Message, Packet, PARK_HANDLER, PARK_OUTPUT, PARK_QUOTA, Route


cdef enum:
    ANSWERED_TWICE = 0x100


cdef Py_ssize_t parse(HotState hot, Conn conn, unsigned char* data, Py_ssize_t at, Py_ssize_t end) except -1
cdef bint may_read(HotState hot, Conn conn) except -1


# private
cdef bint _has_no_room(HotState hot, Conn conn, Route route)
cdef object _cut(HotState hot, Conn conn)
cdef bint _wrong_flags(int first)
cdef Py_ssize_t _long_length(unsigned char* data, Py_ssize_t at, Py_ssize_t end, bint five)
cdef object _fail(HotState hot, Conn conn, int reason_code)
cdef Py_ssize_t _end_run(
    HotState hot, Conn conn, Route route, unsigned char* data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t packet_max, Py_ssize_t count
)
cdef Route _find_route(HotState hot, Conn conn, unsigned char* data, Py_ssize_t at, Py_ssize_t count)
cdef Route _route_of(HotState hot, Conn conn, bytes topic)
cdef int _permission(HotState hot, Conn conn, bytes topic)
cdef bint _other(
    HotState hot, Conn conn, int first, unsigned char* data, Py_ssize_t at, Py_ssize_t body, Py_ssize_t stop
)
cdef bint _ping(HotState hot, Conn conn, int first, Py_ssize_t length)
cdef bint _single(HotState hot, Conn conn, unsigned char* data, Py_ssize_t at, Py_ssize_t body, Py_ssize_t stop)
cdef int _load(Conn conn, Packet packet, unsigned char* data, Py_ssize_t at, Py_ssize_t body, Py_ssize_t stop)
cdef bint _is_repeated(HotState hot, Conn conn, int packet_identifier)
cdef bytes _topic_of(HotState hot, Conn conn, Packet packet, bytes topic)
cdef object _accept(HotState hot, Conn conn, Route route, Packet packet)
cdef object _hand_over(HotState hot, Conn conn, Packet packet)
cdef bytes _plain_properties(Packet packet)
