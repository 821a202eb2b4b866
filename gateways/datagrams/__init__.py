"""Six messages over UDP, for devices that want one hop and no session: a tree of nodes, each with a part of the topics.

Owns: the messages and their form, the node's core (who decides, subscriptions, distribution), the device's core, sealed
datagrams, the process and its programs.

Doors: ``service.main``; ``programs``.

Always holds: one node decides about a topic, and a message leaves from it, once, to each subscriber; no message passes
between nodes, but for devices that can be reached through one alone. Answered means: sent to all at QoS 0; taken by all
who answer at QoS 1. Nothing is stored, and nothing larger is sent, for an address that has not proved itself.

May import: the files of ``gateways/`` beside the sub-rooms, access, wire, mqtt, conf; no other sub-room of
``gateways/``.
"""
