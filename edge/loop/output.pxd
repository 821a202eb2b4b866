# C form of output.py.
from edge.loop.buffers cimport Buffer, Pool, give_buffer, reserve, take_buffer
from edge.loop.layout cimport FAILURE, PACKET_IDENTIFIER_NOT_FOUND
from edge.loop.linux cimport MSG_DONTWAIT, MSG_NOSIGNAL, send
from edge.loop.state cimport LoopConnection, LoopState, OutboundWindow, PARK_OUTPUT, PARK_SLOW


cdef object mark_dirty(LoopState hot, LoopConnection conn)
cdef LoopConnection take_dirty(LoopState hot)
cdef LoopConnection unlink_dirty(LoopConnection conn)
cdef Buffer output_of(LoopState hot, LoopConnection conn)
cdef Py_ssize_t pending_output(LoopConnection conn) noexcept
cdef object unpark(LoopState hot, LoopConnection conn, int bit)
cdef object note_high(LoopState hot, LoopConnection conn)
cdef object wait_for(LoopState hot, LoopConnection publisher, LoopConnection subscriber)
cdef object release_waiters(LoopState hot, LoopConnection conn)
cdef object after_send(LoopState hot, LoopConnection conn)
cdef object update_capacity(LoopState hot, LoopConnection conn)
cdef object end_lag(LoopState hot)
cdef Py_ssize_t send_now(LoopConnection conn, unsigned char* data, Py_ssize_t start, Py_ssize_t count) noexcept
cdef int write_short(LoopState hot, LoopConnection conn, int first, int packet_identifier, int reason_code) except -1
cdef int answer_unknown(LoopState hot, LoopConnection conn, int first, int packet_identifier, int reason_code) except -1


# private
cdef object _release(LoopState hot, LoopConnection publisher)
