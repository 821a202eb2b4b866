"""Federation of unmodified brokers: one agent per broker, and ten messages between agents.

Owns: the messages and their encoding, the overlay of agents, cores and distribution trees of filters, message custody,
capture at the broker, retained registers, and the agent that combines them.
Entry points: ``service.main``, ``agent.Agent`` and the types of ``events``.
Invariant: an agent acknowledges a message to its broker or neighbour only after its spool has it. An agent passes each
message to its broker once within the window of ids. A message without interested agents is not forwarded. Decoders
raise only their documented exception.
May import: the files of ``gateways/`` outside the sub-packages, access, wire, mqtt, conf; no other sub-package.
"""
