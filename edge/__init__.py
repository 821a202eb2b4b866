"""The edge tier: MQTT clients on one side, links to routers and storage nodes on the other.

Owns: client connections, ephemeral sessions and their subscriptions, the route cache, and each acknowledgement that a
publisher receives. Entry points: ``service`` runs the process; ``core.EdgeCore`` handles the events that the loop
cannot handle alone. Invariant: An acknowledgement is sent only after every destination has acknowledged. Without a
lease the edge does not read from clients. The edge stores no data on disk. May import: membership, wire, mqtt and conf;
never another tier.
"""
