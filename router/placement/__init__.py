"""Placement as pure functions: the ring's proposals, plans of a rebalance, and who reaches whom.

Owns: The consistent-hash ring, moves and their next steps, changes of one partition's configuration, reports of
reachability, and the router that leads after one that stops.

Doors: ``ring`` proposes, ``plan`` says what would move, ``changes`` judges one step.

Always holds: Every function gives the same result for the same map. Nothing here decides: the map does.

May import: wire for the map's types.
"""
