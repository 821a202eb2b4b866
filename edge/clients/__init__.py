"""The clients of an edge, from CONNECT to the end of the connection.

Owns: The record of a client, CONNECT and CONNACK, enhanced authentication, DISCONNECT, the orderly stop, and limits of
memory and rate. Entry points: ``connect`` opens and closes sessions, ``authentication`` runs exchanges, ``client`` is
the record for other parts. Invariant: CONNACK is sent after the partition has committed the claim of the client ID. A
client acts only in the phase of its record. May import: edge.loop, edge.node, edge.cluster and edge.listeners; neither
subscriptions nor publishing.
"""
