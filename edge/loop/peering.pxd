# C form of peering.py.
from edge.loop.acks cimport destination_done
from edge.loop.batches cimport flush_peer, release_peer
from edge.loop.fanout cimport handle_refusal
from edge.loop.layout cimport SERVER_UNAVAILABLE, SUPERSEDED
from edge.loop.outboxes cimport leave_outbox, add_former
from edge.loop.output cimport mark_dirty, unpark
from edge.loop.publications cimport PublishMethods
from edge.loop.pushes cimport flush_push_acks
from edge.loop.refused_topics cimport end_behind_refused
from edge.loop.state cimport LoopConnection, PendingAck, PartitionOutbox, PARK_HANDLER, LoopPeer


cdef class Peering(PublishMethods):
    pass
