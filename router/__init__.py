"""The router tier: a Raft group that decides who owns what, and shards of the routing table.

Owns: The ClusterMap and its log, leases, rebalances, and at each router the route shards that the map gives it.

Doors: ``service`` runs the process; ``core.RouterCore`` takes frames and Raft's outcomes and answers with messages and
proposals. ``proposing`` answers for commands, ``outbox`` keeps the messages of a turn.

Always holds: What a map says was committed first. A shard's owner acknowledges routes only when no edge can still use
an answer without them.

May import: membership, wire, mqtt and conf; never another tier.
"""
