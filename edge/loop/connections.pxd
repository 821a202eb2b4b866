# C form of connections.py.
from edge.loop.buffers cimport append_bytes, take_bytes
from edge.loop.deliver cimport drain_pending
from edge.loop.forwarded cimport receive_link
from edge.loop.inbound cimport fail
from edge.loop.layout cimport BY_PEER, BY_US, FAILED
from edge.loop.parked_input cimport (
    answer_pings, drop_pieces, keep_piece, may_read_ahead, next_piece, count_parsed
)
from edge.loop.memory cimport count_held, release_pending, share_of
from edge.loop.output cimport (
    after_send, mark_dirty, output_of, pending_output, release_waiters, take_dirty, unlink_dirty, unpark
)
from edge.loop.parse cimport count_bytes, parse, pause
from edge.loop.shared_rate_limits cimport consume_filters
from edge.loop.state cimport LoopConnection, LoopState, PARK_HANDLER, PARK_OUTPUT, PARK_PIPELINE


cdef class Connections(LoopState):
    cdef object begin_mqtt(self, LoopConnection conn)
    cdef object feed_client(self, LoopConnection conn, bytes data)
    cdef object feed_link(self, LoopConnection conn, bytes data)
    cdef object parse_buffered(self, LoopConnection conn)
    cdef object keep_unparsed(self, LoopConnection conn, bytes data, Py_ssize_t consumed, bint begins)
    cdef object answer_parked_pings(self, LoopConnection conn)
    cdef object parsed(self, LoopConnection conn, Py_ssize_t consumed, bint begins)
    cdef object call_closed(self)
    cdef object remove_conn(self, LoopConnection conn)
    cdef object fail(self, LoopConnection conn, int why)
    cdef object forget(self, LoopConnection conn, int why)
