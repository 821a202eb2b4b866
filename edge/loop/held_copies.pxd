# C form of held_copies.py.
from edge.loop.encode cimport load_plain
from edge.loop.layout cimport HELD_FULL, NOT_HELD
from edge.loop.output cimport wait_for
from edge.loop.records cimport record_of
from edge.loop.state cimport LoopConnection, LoopState, PublishView, Sub


cdef bint hold_copies(LoopState hot, LoopConnection publisher, Sub sub, bytes topic, object records) except -1
cdef list records_of_run(LoopState hot, bytes topic, bint five, unsigned char* data, Py_ssize_t start, Py_ssize_t end)
