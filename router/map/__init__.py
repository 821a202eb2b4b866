"""The ClusterMap's state machine: commands of the log, their bounds, and what a leader does beside them.

Owns: Commands, the machine that carries them out, orders by id, leases, the leader's hand on a rebalance, requests that
wait at the leader, and the stream of the map to the nodes that follow.

Doors: ``commands`` may be proposed, ``machine`` carries them out by one rule each (``node_rules``, ``partition_rules``,
``shard_rules``, ``rebalance_rules``), ``leases`` says who may act until when.

Always holds: ``apply`` never raises, and every router carries out or refuses a command alike. What was applied can be
sent in pages.

May import: router.placement, wire.
"""
