"""Looks at a router: routes of its shards, what it would answer for a topic, and consensus.

Owns: What is read of the shards that this router owns, and of Raft, to answer looks.

Doors: ``operators`` takes looks, ``routes`` and ``consensus`` say what they show.

Always holds: A look changes nothing; no answer of a shard is held for anybody by it.

May import: router.raft, router.map, router.routes.
"""
