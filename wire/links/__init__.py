"""Links between nodes: TLS, HELLO, numbered frames, and rules of permitted messages.

Owns: Connections to peers and their order across reconnects, certificates, refusals, and requests of operators.

Entry points: ``hub`` keeps a node's links, ``link`` is one of them, ``allowed`` is the table of permitted messages.
Edges share the rules of ``admission`` (acceptance and resume position of a link) and ``redial`` with the other tiers.

Always holds: Frames arrive once and in order for as long as both incarnations live. A certificate is checked before a
byte of HELLO is decoded.

May import: wire.messages, wire.clock, conf.
"""
