# C form of refused_topics.py.
from edge.loop.layout cimport QUOTA_EXCEEDED
from edge.loop.records cimport topic_of
from edge.loop.state cimport LoopConnection, HotState, PendingAck


cdef enum:
    TAKES = 0
    REFUSES = 1
    ENDS = 2


cdef object note_refused(HotState hot, PendingAck message)
cdef int judge_refused(HotState hot, LoopConnection conn, bytes topic) except -1
cdef object end_behind_refused(HotState hot, PendingAck message)
