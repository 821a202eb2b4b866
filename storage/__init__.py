"""The storage tier: durable sessions, their queues, retained messages, and copies of each partition on several nodes.

Owns: the state that acknowledgements promise: LSM stores, partitions, their replication and their exports.

Entry points: ``service`` runs the process; ``core.StorageCore`` takes frames and syncs and returns writes and frames;
``cli`` has the commands for stopped stores.

Invariant: an output leaves only when its operation is on disk at every copy in sync. Only the primary of the current
epoch serves a partition, under a lease.

May import: membership, wire, mqtt and conf; never another tier.
"""
