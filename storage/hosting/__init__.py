"""Partitions on this node: their phases from backup to serving primary, and pending requests.

Owns: promotion and demotion, loading, requests that arrived too early, and work in slices.

Entry points: ``placements`` follows the map, ``hosted_partition`` joins the parts of one partition.

Invariant: loading, settling, polling, serving: a partition replies in the last phase only. Pending requests have a
bound and an order.

May import: storage.state, storage.messages, storage.sessions, storage.replication.
"""
