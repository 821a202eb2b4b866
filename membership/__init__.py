"""Gossip membership (SWIM): who is there, who is suspected, and how a new node finds the others.

Owns: Members and their states, probes, dissemination, keys that seal packets, and the replay window.

Doors: ``gossip`` runs it in a node, ``swim`` is the protocol without input and output, ``admin`` answers operators.

Always holds: Gossip finds and watches; it decides nothing: who owns what is the routers' map. A packet that is not
sealed with a known key is dropped and counted.

May import: wire, mqtt and conf.
"""
