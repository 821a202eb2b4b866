"""The clients of an edge: who each is, and the way from CONNECT to the end of the connection.

Owns: The record of a client, CONNECT and CONNACK, enhanced authentication, DISCONNECT, the orderly stop, and bounds of
memory and rate.

Doors: ``connect`` opens and closes sessions, ``authentication`` runs exchanges, ``client`` is the record that other
parts read.

Always holds: CONNACK leaves after the claim of the client ID is committed at its partition. A client acts only in the
phase that its record names.

May import: edge.loop, edge.node, edge.cluster and edge.listeners; neither subscriptions nor publishing.
"""
