# C form of refused_topics.py.
from edge.loop.layout cimport QUOTA_EXCEEDED
from edge.loop.records cimport topic_of
from edge.loop.state cimport LoopConnection, LoopState, PendingAck


cdef enum:
    TAKES = 0
    REFUSES = 1
    ENDS = 2


cdef object note_refused(LoopState hot, PendingAck message)
cdef int check_refused(LoopState hot, LoopConnection conn, bytes topic) except -1
cdef object end_behind_refused(LoopState hot, PendingAck message)
