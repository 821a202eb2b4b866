"""Route shards: filters with their destinations, and the edges that cache answers.

Owns: the routes of a shard, the topics that edges cache, invalidations, and the search for topics that a filter
matches.

Entry points: ``owned_shards.OwnedShards`` takes all shard messages of a router. ``shard.RouteShard`` is one shard at
its owner. ``answers`` splits answers into frames.

Invariant: a sender changes only its own routes. The cost of a match is bounded for any filters. Routes are soft state:
their senders repeat them.

May import: mqtt for topics, wire.
"""
