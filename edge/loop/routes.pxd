# C form of routes.py.
from edge.loop.state cimport LoopState, Route


cdef enum:
    ROUTE_CHECK_BYTES = 16384
    SUBSCRIBER_BYTES = 128


cdef Route known_route(LoopState hot, bytes topic)
cdef Route local_route(LoopState hot, bytes topic)
