"""Federation of brokers that stay as they are: one agent beside each broker, and ten messages between agents.

Owns: the messages and their form, the overlay of agents, cores and meshes of filters, custody of messages, capture at
the broker, retained registers, and the agent that joins them.

Doors: ``agent.Agent`` and the types of ``events``.

Always holds: an agent acknowledges its broker, or its neighbour, after the message is in its spool; at one agent a
message is handed to the broker once within the window of ids. What no agent wants does not travel. No decoder lets an
exception out.

May import: the files of ``gateways/`` beside the sub-rooms, access, wire, mqtt, conf; no other sub-room of
``gateways/``.
"""
