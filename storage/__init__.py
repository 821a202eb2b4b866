"""The storage tier: durable sessions, their queues, retained messages, and copies of each partition on several nodes.

Owns: Everything that an acknowledgement promises: LSM stores, partitions, their replication and their exports.

Doors: ``service`` runs the process; ``core.StorageCore`` takes frames and syncs and answers with writes and frames;
``cli`` holds the verbs of stopped stores.

Always holds: An output leaves only when its operation is on disk at every copy in sync. A partition is served only by
its primary of the current epoch, under a lease.

May import: membership, wire, mqtt and conf; never another tier.
"""
