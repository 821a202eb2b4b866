"""Subscriptions at an edge: SUBSCRIBE and UNSUBSCRIBE, retained messages for them, and what is held meanwhile.

Owns: Filters of ephemeral sessions, the pieces in which filters of durable ones travel, retained reads, and $SYS
topics.

Doors: ``subscribe`` takes the packets, ``retained_reads`` delivers retained messages, ``held_live`` keeps live ones
back until then.

Always holds: SUBACK leaves when the routes stand at every edge. A retained copy reaches a subscriber before a live
message of its topic that is newer.

May import: edge.loop, edge.node, edge.clients, edge.cluster and edge.routes; not publishing.
"""
