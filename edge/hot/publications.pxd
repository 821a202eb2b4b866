# C form of publications.py.
from edge.hot.acks cimport count_back, destination_done, new_message
from edge.hot.connections cimport Connections
from edge.hot.deliver cimport deliver_to
from edge.hot.fanout cimport fan_out, redispatch
from edge.hot.layout cimport NO_EXPIRY, NO_MATCHING_SUBSCRIBERS, QUOTA_EXCEEDED, SERVER_BUSY
from edge.hot.notes cimport note_drop
from edge.hot.origins cimport was_picked
from edge.hot.outboxes cimport park_if_primary_full
from edge.hot.output cimport note_high, pending_output, unpark, write_short
from edge.hot.picks cimport unfinished_picks
from edge.hot.records cimport load_record, topic_of
from edge.hot.refused_topics cimport ENDS, TAKES, judge_refused
from edge.hot.routes cimport known_route
from edge.hot.state cimport (
    LoopConnection, HotState, InboundPublish, OutboundWindow, PARK_QUOTA, PendingAck, PublishView, RELEASE_PENDING, Route, Sub
)
from edge.hot.told_origins cimport forget_origin


cdef class PublishMethods(Connections):
    cdef object load_inbound(self, InboundPublish publish)


# private
cdef bint _refuse_if_behind(HotState hot, InboundPublish publish) except -1
