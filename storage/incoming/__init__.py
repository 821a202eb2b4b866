"""Frames of other nodes: selects the partition of each message, authorizes it, and calls its handler.

Owns: the path of a message, a request or an acknowledgement from its frame to its partition or to a pending queue.

Entry points: ``publishing`` takes messages, ``requests`` the requests of edges to one partition or to all, ``control``
the rest.

Invariant: an unauthorized frame never reaches a partition. A request is executed by the primary of its epoch, waits in
a bounded queue, or is refused with a reply.

May import: storage.state, storage.messages, storage.sessions, storage.hosting, access.operators.
"""
