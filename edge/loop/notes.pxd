# C form of notes.py.
from edge.loop.layout cimport TOPIC_NAME_INVALID
from edge.loop.state cimport LoopConnection, LoopState, PublishView
from edge.loop.traces cimport trace_dropped


cdef enum:
    NOTES_PER_ITERATION = 16
    DENIED_GAP_NS = 1000000000


cdef object note_drop(LoopState hot, LoopConnection conn, str reason, bytes topic, PublishView packet)
cdef object note_drops(LoopState hot, LoopConnection conn, str reason, bytes topic, Py_ssize_t count)
cdef object note_denied(LoopState hot, LoopConnection conn, int reason_code, bytes topic)
