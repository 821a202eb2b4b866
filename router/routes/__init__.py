"""Route shards: filters with their destinations, and which edges hold cached answers.

Owns: The routes of a shard, the topics that edges cached, orders to drop answers, and the search for topics that a
filter matches.

Doors: ``owned_shards.OwnedShards`` takes messages for all of a router; ``shard.RouteShard`` is one shard at its owner;
``answers`` cuts what is said into frames.

Always holds: A sender speaks for its own routes only. A match is bounded whatever the filters are. Routes are soft:
their senders repeat them.

May import: mqtt for topics, wire.
"""
