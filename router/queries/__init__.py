"""Queries of a router: routes of its shards, the resolution of a topic, and consensus.

Owns: the rows about this router's shards and Raft.

Entry points: ``operators`` takes queries, ``routes`` and ``consensus`` define the rows.

Invariant: a query changes nothing, and holds up no answer of a shard.

May import: router.raft, router.map, router.routes.
"""
