"""Messages that need a decision: unknown topics, retained messages, QoS 2 of durable sessions, wills, other members.

Owns: The steps between a PUBLISH and its fan-out where the loop alone may not decide, and messages of shared groups
that want another member.

Doors: ``publishing`` takes them from the loop; ``redispatch`` finds another member.

Always holds: QoS 2 of a durable session is recorded at its partition before any fan-out. A member is recorded before a
message is sent to it.

May import: edge.loop, edge.node, edge.routes, edge.clients, edge.cluster and edge.subscriptions.
"""
