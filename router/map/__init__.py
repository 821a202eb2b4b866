"""The ClusterMap's state machine: commands of the log, their bounds, and the leader's work around them.

Owns: commands, the machine that applies them, orders by identifier, leases, the leader's execution of a rebalance,
requests that wait at the leader, and the stream of the map to its followers.

Entry points: ``commands`` can be proposed. ``machine`` applies them with one rule each (``node_rules``,
``partition_rules``, ``shard_rules``, ``rebalance_rules``). ``leases`` holds each incarnation's lease.

Invariant: ``apply`` never raises, and every router applies or refuses a command alike. Every applied map can be sent in
pages.

May import: router.placement, wire.
"""
