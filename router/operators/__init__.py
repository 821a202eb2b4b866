"""Operators' queries and commands at a router.

Owns: queries of the map with explanations, commands of the ring, and commands of the Raft group.

Entry points: ``queries`` answers, ``ring_commands`` builds map commands, ``group_commands`` changes the group.

Invariant: a command is validated before it is proposed, and again by the machine. A refusal states the reason and the
remedy in one line.

May import: router.map, router.placement, router.routes, router.raft, access.operators, wire.
"""
