"""The router tier: a Raft group that replicates the cluster map, and the shards of the routing table.

Owns: the ClusterMap and its log, leases, rebalances, and the route shards that the map assigns to each router.

Entry points: ``service`` runs the process. ``core.RouterCore`` takes frames and Raft's results, and returns messages
and proposals. ``proposing`` answers commands, ``outbox`` holds the messages of an iteration.

Invariant: every map state was committed first. A shard's owner acknowledges routes only when no edge can use a cached
answer without them.

May import: membership, wire, mqtt and conf; never another tier.
"""
