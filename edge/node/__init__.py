"""The ground that all parts of an edge stand on: time, map, lease, bounds, and the way to other nodes.

Owns: What every part may know of its node, the ports of the loop by who needs them, work in slices, and limits.

Doors: ``node.EdgeNode`` is given to every part; ``ports`` has the Protocols that ``hot`` satisfies.

Always holds: ``now`` never falls within a turn. Messages to one node keep their order. Nothing here calls a part back.

May import: edge.loop, wire.
"""
