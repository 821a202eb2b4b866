"""Raft: elections, replication, snapshots and single-server changes of the group, with one file for each chapter of the
paper.

Owns: Terms, votes, the log in memory and on disk, and the order in which effects of a step may leave.

Doors: ``core.RaftCore`` is the state machine without input and output, ``node.RaftNode`` runs it with a disk and links.

Always holds: Messages that promise something leave after what they promise is on disk. A leader commits entries of its
own term only.

May import: wire for frames and decoding, conf; nothing else of the router.
"""
