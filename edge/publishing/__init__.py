"""Publishing beyond the fast path: route misses, retained messages, QoS 2 of durable sessions, wills, redispatch.

Owns: The steps between a PUBLISH and its fan-out that the compiled loop cannot decide alone, and the redispatch of
shared messages.

Entry points: ``publishing`` receives messages from the loop; ``redispatch`` selects another member.

Invariants: The partition records QoS 2 of a durable session before any fan-out. The pick of a member is recorded before
a message is sent to it.

May import: edge.loop, edge.node, edge.routes, edge.clients, edge.cluster and edge.subscriptions.
"""
