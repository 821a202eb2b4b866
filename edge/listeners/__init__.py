"""Sockets of clients and the byte protocols below MQTT.

Owns: Listening sockets, the PROXY protocol header, WebSocket frames, and the networks with trusted headers. Entry
points: ``listeners`` binds and opens, ``listener_admission`` selects the protocols of a listener, ``proxied_socket``
reads a header before TLS. Invariant: A header is read to the byte, from trusted addresses only. Every handshake has a
bound in bytes and in time. May import: edge.loop and edge.node.
"""
