# C form of output.py.
from edge.loop.buffers cimport Buffer, Pool, give_buffer, reserve, take_buffer
from edge.loop.layout cimport FAILURE, PACKET_IDENTIFIER_NOT_FOUND
from edge.loop.linux cimport MSG_DONTWAIT, MSG_NOSIGNAL, send
from edge.loop.state cimport LoopConnection, HotState, OutboundWindow, PARK_OUTPUT, PARK_SLOW


cdef object mark_dirty(HotState hot, LoopConnection conn)
cdef LoopConnection take_dirty(HotState hot)
cdef LoopConnection unlink_dirty(LoopConnection conn)
cdef Buffer output_of(HotState hot, LoopConnection conn)
cdef Py_ssize_t pending_output(LoopConnection conn) noexcept
cdef object unpark(HotState hot, LoopConnection conn, int bit)
cdef object note_high(HotState hot, LoopConnection conn)
cdef object wait_for(HotState hot, LoopConnection publisher, LoopConnection subscriber)
cdef object release_waiters(HotState hot, LoopConnection conn)
cdef object drained(HotState hot, LoopConnection conn)
cdef object note_room(HotState hot, LoopConnection conn)
cdef object end_lag(HotState hot)
cdef Py_ssize_t send_now(LoopConnection conn, unsigned char* data, Py_ssize_t start, Py_ssize_t count) noexcept
cdef int write_short(HotState hot, LoopConnection conn, int first, int packet_identifier, int reason_code) except -1
cdef int answer_unknown(HotState hot, LoopConnection conn, int first, int packet_identifier, int reason_code) except -1


# private
cdef object _release(HotState hot, LoopConnection publisher)
