"""Partitions on this node: which are served, how each comes to serve, and what waits until then.

Owns: The way from backup to primary and back, loading, requests that came too early, and work in slices.

Doors: ``placements`` follows the map, ``hosted_partition`` joins the parts of one partition.

Always holds: Loading, settling, polling, serving: a partition answers in the last state only. What waits has a bound
and an order.

May import: storage.state, storage.messages, storage.sessions, storage.replication.
"""
