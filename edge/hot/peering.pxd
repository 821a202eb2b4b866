# C form of peering.py.
from edge.hot.acks cimport destination_done
from edge.hot.batches cimport flush_peer, release_peer
from edge.hot.fanout cimport refused
from edge.hot.layout cimport SERVER_UNAVAILABLE, SUPERSEDED
from edge.hot.outboxes cimport leave_outbox, note_former
from edge.hot.output cimport mark_dirty, unpark
from edge.hot.publications cimport PublishMethods
from edge.hot.pushes cimport flush_push_acks
from edge.hot.refused_topics cimport end_behind_refused
from edge.hot.state cimport LoopConnection, PendingAck, PartitionOutbox, PARK_HANDLER, LoopPeer


cdef class Peering(PublishMethods):
    pass
