# C form of centre.py.
from edge.hot.ack_rows cimport flush_rows
from edge.hot.acks cimport answer, count_back, destination_done, enter_gate, new_message
from edge.hot.buffers cimport Buffer, append_bytes, take_bytes
from edge.hot.deliver cimport deliver_to, drain_pending
from edge.hot.excess cimport owes_too_long
from edge.hot.fanout cimport fan_out, pick_again, refused
from edge.hot.forwarded cimport receive_link
from edge.hot.layout cimport (
    BY_PEER, BY_US, FAILED, FAILURE, KEEP_ALIVE_TIMEOUT, NO_MATCHING_SUBSCRIBERS, RECEIVE_MAXIMUM_EXCEEDED,
    SERVER_UNAVAILABLE, SUPERSEDED, UNSPECIFIED_ERROR
)
from edge.hot.memory cimport count_held, forget_waiting, share_of
from edge.hot.origins cimport was_picked
from edge.hot.output cimport drained, end_lag, mark_dirty, note_high, pending_output, output_of, release_waiters, take_dirty, unlink_dirty, unpark, write_short
from edge.hot.parse cimport parse
from edge.hot.batches cimport flush_batches, flush_peer, release_peer, send_frame
from edge.hot.outboxes cimport leave_outbox, note_former, pump_outboxes
from edge.hot.picks cimport unfinished_picks
from edge.hot.pushes cimport flush_push_acks
from edge.hot.routes cimport known_route
from edge.hot.state cimport (
    Conn, HotState, Inbound, Message, Outbound, Outbox, Packet, PARK_HANDLER, PARK_OUTPUT, PARK_RATE, Peer, Route
)


cdef class Hot(HotState):
    cpdef object begin_round(self, long long now_ns)
    cpdef object end_round(self, long long now_ns)
    cdef object feed_client(self, Conn conn, bytes data)
    cdef object feed_link(self, Conn conn, bytes data)
    cdef object parse_kept(self, Conn conn)
    cdef object call_closed(self)
    cdef object fail(self, Conn conn, int why)
    cdef object forget(self, Conn conn, int why)
    cdef object load_inbound(self, Inbound publish)
