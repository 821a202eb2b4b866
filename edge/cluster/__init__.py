"""The cluster as the edge uses it: peers, requests to partitions, and changes of the map.

Owns: Links of the edge by peer, connections that have not authenticated, and unanswered requests to partitions. Entry
points: ``peer_table`` binds connections to peers, ``link_dialer`` decides dials, ``partition_requests`` sends requests
to partitions. Invariant: A request is kept until it is answered, and sent again in order to a new primary. May import:
edge.loop, edge.node, wire.
"""
