# C form of inbound.py.
from edge.loop.acks cimport write_ack, destination_done, new_message, reserve_ack
from edge.loop.buffers cimport Buffer, get16, reserve, take_bytes
from edge.loop.deliver cimport park_if_slow
from edge.loop.encode cimport copy_plain, valid_topic, walk_properties
from edge.loop.excess cimport EXCEEDED, WAITS, hold_excess, check_excess
from edge.loop.fanout cimport fan_out
from edge.loop.layout cimport (
    FAILURE, IMPLEMENTATION_SPECIFIC_ERROR, MALFORMED_PACKET, NO_EXPIRY, NO_MATCHING_SUBSCRIBERS, PROTOCOL_ERROR,
    QOS_NOT_SUPPORTED, QUOTA_EXCEEDED, RECEIVE_MAXIMUM_EXCEEDED, RETAIN_NOT_SUPPORTED, TOPIC_ALIAS_INVALID
)
from edge.loop.notes cimport note_denied
from edge.loop.output cimport mark_dirty, pending_output
from edge.loop.outboxes cimport park_if_peers_full
from edge.loop.refused_topics cimport ENDS, TAKES, check_refused
from edge.loop.routes cimport known_route
from edge.loop.state cimport ANSWER_PENDING, LoopConnection, LoopState, InboundPublish, PendingAck, PublishView, PARK_HANDLER, PARK_OUTPUT, PARK_QUOTA, Route
from edge.loop.traces cimport note_event, trace_refused
from edge.loop.verdicts cimport authorize_route


cdef enum:
    INBOUND_BYTES = 65536
    NEW_IDENTIFIER = 0
    REPEAT_ANSWERED = 1
    REPEAT_WAITS = 2


cdef bint park_if_full(LoopState hot, LoopConnection conn, Route route) except -1
cdef object fail(LoopState hot, LoopConnection conn, int reason_code)
cdef Route find_route(LoopState hot, LoopConnection conn, unsigned char* data, Py_ssize_t at, Py_ssize_t count)
cdef bint handle_publish(
    LoopState hot, LoopConnection conn, unsigned char* data, Py_ssize_t at, Py_ssize_t body, Py_ssize_t stop
) except -1


# private
cdef Route _route_of(LoopState hot, LoopConnection conn, bytes topic, int qos, bint retain)
cdef bint _is_allowed(LoopState hot, LoopConnection conn, Route route, bint retain) noexcept
cdef Route _unless_refused(LoopState hot, LoopConnection conn, Route route, int qos)
cdef int _load(LoopState hot, LoopConnection conn, PublishView packet, unsigned char* data, Py_ssize_t at, Py_ssize_t body, Py_ssize_t stop)
cdef int _answer_repeat(LoopState hot, LoopConnection conn, int packet_identifier) except -1
cdef bytes _topic_of(LoopState hot, LoopConnection conn, PublishView packet, bytes topic)
cdef object _accept(LoopState hot, LoopConnection conn, Route route, PublishView packet)
cdef bint _is_for_core(LoopConnection conn, Route route, PublishView packet)
cdef object _give_to_core(LoopState hot, LoopConnection conn, Route route, PublishView packet)
cdef bytes _plain_properties(PublishView packet)
