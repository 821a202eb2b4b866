# C form of outboxes.py.
from edge.loop.batches cimport append_record
from edge.loop.notes cimport note_drop
from edge.loop.output cimport mark_dirty, unpark
from edge.loop.records cimport with_remaining_expiry, topic_of
from edge.loop.state cimport LoopConnection, LoopState, PendingAck, PartitionOutbox, PARK_PEER, LoopPeer, Route


cdef object find_targets(LoopState hot, Route route)
cdef bint park_if_peers_full(LoopState hot, LoopConnection publisher, Route route) except -1
cdef object park_if_primary_full(LoopState hot, LoopConnection publisher, int partition)
cdef object send_to_edge(LoopState hot, LoopPeer peer, bytes record, PendingAck message)
cdef object send_to_partitions(LoopState hot, Route route, bytes record, PendingAck message)
cdef object send_to_partition(LoopState hot, int partition, bytes record, PendingAck message, bytes share)
cdef object leave_outbox(LoopState hot, PendingAck message)
cdef object add_former(LoopState hot, PartitionOutbox outbox, LoopPeer former)
cdef object pump_outboxes(LoopState hot)


# private
cdef object _park(LoopState hot, LoopConnection publisher)
cdef bint _wait_for_peer(LoopConnection publisher, LoopPeer peer)
cdef LoopPeer _primary_of(LoopState hot, int partition)
cdef PartitionOutbox _outbox(LoopState hot, int partition)
cdef object _keep(LoopState hot, PartitionOutbox outbox, bytes record, PendingAck message)
cdef bint _pump(LoopState hot, int partition, PartitionOutbox outbox)
