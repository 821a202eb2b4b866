# C form of ack_rows.py.
from edge.hot.buffers cimport Buffer, append_bytes, append_decimal, take_bytes
from edge.hot.state cimport HotState, Message, Route


cdef object record_ack(HotState hot, Message message)
cdef object flush_rows(HotState hot)
