"""Links between nodes: TLS, HELLO, numbered frames, and who may say what.

Owns: Connections to peers and their order across reconnects, certificates, refusals, and requests of operators.

Doors: ``hub`` keeps a node's links, ``link`` is one of them, ``allowed`` is the table of who may say what. Edges have
the rules of ``admission`` (who gets a link, and where it goes on) and ``redial`` in common with the other tiers.

Always holds: Frames arrive once and in order for as long as both incarnations live. A certificate is judged before a
byte of HELLO is decoded.

May import: wire.messages, wire.clock, conf.
"""
