"""Operators' queries at a storage node: sessions, queues, retained messages, copies, bounded per iteration.

Owns: the row sources of this node's partitions.

Entry points: ``sources`` joins the resources of all kinds.

Invariant: a query changes no state and reads only its rows from disk. Except for copies, only partitions with this
node as primary are listed.

May import: storage.state, storage.messages, storage.sessions, storage.replication, storage.hosting.
"""
