"""Sockets of clients and the byte protocols that stand before MQTT.

Owns: Listening sockets, the PROXY protocol header, WebSocket frames, and whom a header is believed from.

Doors: ``listeners`` binds and opens, ``filters`` names the protocols of a listener, ``proxied_socket`` reads a header
before TLS.

Always holds: A header is read to the byte, from trusted addresses only. Every handshake has a bound in bytes and in
time.

May import: edge.loop and edge.node.
"""
