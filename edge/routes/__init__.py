"""Routes of an edge: the destinations of a topic, and the subscribers that topics share.

Owns: The route cache, answers of shards' owners, subscribers of equal topics, shared groups, and invalidations.

Entry points: ``route_cache`` sends requests and caches answers, ``answers`` builds Routes, ``shared_groups`` selects
members.

Invariants: An answer is used only until its invalidation arrives. Equal destinations are one object, and their bytes
are counted.

May import: edge.loop and edge.node.
"""
