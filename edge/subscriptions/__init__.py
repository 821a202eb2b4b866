"""Subscriptions at an edge: SUBSCRIBE and UNSUBSCRIBE, reads of retained messages, and live messages held meanwhile.

Owns: Filters of ephemeral sessions, requests for those of durable sessions, retained reads, and $SYS topics. Entry
points: ``subscribe`` handles the packets, ``retained_reads`` delivers retained messages, ``live_message_holds`` holds
live ones until then. Invariant: SUBACK is sent after every edge has the routes. A subscriber receives a retained
message before any newer live message of its topic. May import: edge.loop, edge.node, edge.clients, edge.cluster and
edge.routes; not publishing.
"""
