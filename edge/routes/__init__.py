"""Routes of an edge: what a topic's destinations are, and which subscribers share them.

Owns: The route cache, answers of shards' owners, subscribers of equal topics, shared groups, and orders that void
answers.

Doors: ``route_cache`` asks and answers, ``answers`` builds Routes, ``shared_groups`` picks members.

Always holds: An answer is used only until the order that voids it arrives. Equal destinations are one object, and their
bytes are counted.

May import: edge.loop and edge.node.
"""
