# C form of output.py.
from edge.hot.buffers cimport Buffer, Pool, give_buffer, reserve, take_buffer
from edge.hot.layout cimport FAILURE, PACKET_IDENTIFIER_NOT_FOUND
from edge.hot.linux cimport MSG_DONTWAIT, MSG_NOSIGNAL, send
from edge.hot.state cimport Conn, HotState, Outbound, PARK_OUTPUT, PARK_SLOW


cdef object mark_dirty(HotState hot, Conn conn)
cdef Conn take_dirty(HotState hot)
cdef Conn unlink_dirty(Conn conn)
cdef Buffer output_of(HotState hot, Conn conn)
cdef Py_ssize_t pending_output(Conn conn) noexcept
cdef object unpark(HotState hot, Conn conn, int bit)
cdef object note_high(HotState hot, Conn conn)
cdef object wait_for(HotState hot, Conn publisher, Conn subscriber)
cdef object release_waiters(HotState hot, Conn conn)
cdef object drained(HotState hot, Conn conn)
cdef object note_room(HotState hot, Conn conn)
cdef object end_lag(HotState hot)
cdef Py_ssize_t send_now(Conn conn, unsigned char* data, Py_ssize_t start, Py_ssize_t count) noexcept
cdef int write_short(HotState hot, Conn conn, int first, int packet_identifier, int reason_code) except -1
cdef int answer_unknown(HotState hot, Conn conn, int first, int packet_identifier, int reason_code) except -1


# private
cdef object _release(HotState hot, Conn publisher)
