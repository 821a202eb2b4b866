# C form of publications.py.
from edge.loop.acks cimport return_quota, destination_done, new_message
from edge.loop.connections cimport Connections
from edge.loop.deliver cimport deliver_to
from edge.loop.fanout cimport fan_out, redispatch
from edge.loop.layout cimport NO_EXPIRY, NO_MATCHING_SUBSCRIBERS, QUOTA_EXCEEDED, SERVER_BUSY
from edge.loop.notes cimport note_drop
from edge.loop.origins cimport was_picked
from edge.loop.outboxes cimport park_if_primary_full
from edge.loop.output cimport note_high, pending_output, unpark, write_short
from edge.loop.picks cimport take_unacked_picks
from edge.loop.records cimport load_record, topic_of
from edge.loop.refused_topics cimport ENDS, TAKES, check_refused
from edge.loop.routes cimport known_route
from edge.loop.state cimport (
    LoopConnection, LoopState, InboundPublish, OutboundWindow, PARK_QUOTA, PendingAck, PublishView, RELEASE_PENDING, Route, Sub
)
from edge.loop.reported_origins cimport forget_origin


cdef class PublishMethods(Connections):
    cdef object load_inbound(self, InboundPublish publish)


# private
cdef bint _refuse_if_behind(LoopState hot, InboundPublish publish) except -1
