# C form of held_copies.py.
from edge.hot.encode cimport load_plain
from edge.hot.layout cimport HELD_FULL, NOT_HELD
from edge.hot.output cimport wait_for
from edge.hot.records cimport record_of
from edge.hot.state cimport LoopConnection, HotState, PublishView, Sub


cdef bint hold_copies(HotState hot, LoopConnection publisher, Sub sub, bytes topic, object records) except -1
cdef list records_of_run(HotState hot, bytes topic, bint five, unsigned char* data, Py_ssize_t start, Py_ssize_t end)
