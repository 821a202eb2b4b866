# C form of refused_topics.py.
from edge.hot.layout cimport QUOTA_EXCEEDED
from edge.hot.records cimport topic_of
from edge.hot.state cimport LoopConnection, HotState, PendingAck


cdef enum:
    TAKES = 0
    REFUSES = 1
    ENDS = 2


cdef object note_refused(HotState hot, PendingAck message)
cdef int judge_refused(HotState hot, LoopConnection conn, bytes topic) except -1
cdef object end_behind_refused(HotState hot, PendingAck message)
