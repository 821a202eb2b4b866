"""Raft: elections, replication, snapshots and single-server membership changes, one file for each part of the paper.

Owns: terms, votes, the log in memory and on disk, and the order of a step's effects.

Entry points: ``core.RaftCore`` is the state machine without I/O. ``node.RaftNode`` runs it with a disk and links.

Invariant: a message that promises durability is sent after the data is on disk. A leader commits only entries of its
own term.

May import: wire for frames and decoding, conf; no other part of the router.
"""
