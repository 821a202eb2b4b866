# C form of routes.py.
from edge.loop.state cimport HotState, Route


cdef enum:
    LOOK_UP_BYTES = 16384
    SUBSCRIBER_BYTES = 128


cdef Route known_route(HotState hot, bytes topic)
cdef Route local_route(HotState hot, bytes topic)
