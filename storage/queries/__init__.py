"""Looks at a storage node: sessions, queues, retained messages, copies, a bounded number at a time.

Owns: What is read of this node's partitions to answer looks.

Doors: ``sources`` joins what each kind of look shows.

Always holds: A look changes nothing, and reads of the disk only the rows that it shows. Only what this node is primary
of is shown, but for copies.

May import: storage.state, storage.messages, storage.sessions, storage.replication, storage.hosting.
"""
