"""Placement as pure functions: the ring's proposals, plans of a rebalance, and reachability of nodes.

Owns: the consistent-hash ring, moves and their next steps, changes of one partition's configuration, reports of
reachability, and the successor of a leader that stops.

Entry points: ``ring`` proposes, ``plan`` computes moves, ``changes`` validates one step.

Invariant: every function gives the same result for the same map. Only commands change the map.

May import: wire for the map's types.
"""
