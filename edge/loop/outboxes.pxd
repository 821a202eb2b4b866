# C form of outboxes.py.
from edge.loop.batches cimport append_record
from edge.loop.notes cimport note_drop
from edge.loop.output cimport mark_dirty, unpark
from edge.loop.records cimport aged, topic_of
from edge.loop.state cimport LoopConnection, HotState, PendingAck, PartitionOutbox, PARK_PEER, LoopPeer, Route


cdef object find_targets(HotState hot, Route route)
cdef bint park_if_peers_full(HotState hot, LoopConnection publisher, Route route) except -1
cdef object park_if_primary_full(HotState hot, LoopConnection publisher, int partition)
cdef object send_to_edge(HotState hot, LoopPeer peer, bytes record, PendingAck message)
cdef object send_to_partitions(HotState hot, Route route, bytes record, PendingAck message)
cdef object send_to_partition(HotState hot, int partition, bytes record, PendingAck message, bytes share)
cdef object leave_outbox(HotState hot, PendingAck message)
cdef object note_former(HotState hot, PartitionOutbox outbox, LoopPeer former)
cdef object pump_outboxes(HotState hot)


# private
cdef object _park(HotState hot, LoopConnection publisher)
cdef bint _wait_for_peer(LoopConnection publisher, LoopPeer peer)
cdef LoopPeer _primary_of(HotState hot, int partition)
cdef PartitionOutbox _outbox(HotState hot, int partition)
cdef object _keep(HotState hot, PartitionOutbox outbox, bytes record, PendingAck message)
cdef bint _pump(HotState hot, int partition, PartitionOutbox outbox)
