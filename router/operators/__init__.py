"""Operators' questions and orders at a router.

Owns: Answers about the map and why it is so, verbs of the ring, and verbs of the Raft group.

Doors: ``queries`` answers, ``ring_verbs`` turns words into commands, ``group_verbs`` changes the group.

Always holds: A verb is judged before anything is proposed, and again by the machine. A refusal says in one line why,
and what to do.

May import: router.map, router.placement, router.routes, router.raft, access.operators, wire.
"""
