"""Gossip membership (SWIM): members, suspicions, and discovery of the first members by a new node.

Owns: Members and their states, probes, dissemination, keys that seal packets, and the replay window.

Entry points: ``gossip`` runs it in a node, ``swim`` is the protocol without I/O, ``admin`` executes operators' orders.

Always holds: Gossip only observes; the routers' map decides ownership. A packet that is not sealed with a known key is
dropped and counted.

May import: wire, mqtt and conf.
"""
