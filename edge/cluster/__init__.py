"""The cluster as an edge meets it: peers, requests to partitions, and the map's consequences.

Owns: Links of the edge by peer, connections that have not said who they are, and requests that wait for a partition's
answer.

Doors: ``peer_table`` joins connections to peers, ``dialling`` says whom to dial and when, ``partition_requests`` asks
partitions.

Always holds: A request is kept until it is answered, and sent again in order to a new primary.

May import: edge.loop, edge.node, wire.
"""
