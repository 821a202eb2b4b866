"""Shared foundation of all parts of an edge: time, map, lease, bounds, and messages to other nodes.

Owns: The node's state that every part may read, the loop's interfaces, work in slices, and limits. Entry points:
``node.EdgeNode`` is given to every part; ``ports`` has the Protocols that ``loop`` implements. Invariant: ``now`` never
decreases within an iteration. Messages to one node keep their order. This package calls no part back. May import:
edge.loop, wire.
"""
