"""Six messages over UDP for devices that need one hop and no session: a tree of nodes, each deciding for a part of the
topics.

Owns: the messages and their encoding, the node's core (jurisdiction, subscriptions, distribution), the device's core,
sealed datagrams, the process and its programs.
Entry points: ``service.main``; ``programs``.
Invariant: one node decides for a topic and sends each of its messages once to each subscriber. No message passes
between
nodes, except for devices that only one node can reach. An answer means: sent to all at QoS 0; acknowledged by all
responsive subscribers at QoS 1. For an unproved address no state is stored, and no amplified answer is sent.
May import: the files of ``gateways/`` outside the sub-packages, access, wire, mqtt, conf; no other sub-package.
"""
