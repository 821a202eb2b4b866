"""The edge tier: MQTT clients on one side, links to routers and storage nodes on the other.

Owns: Connections of clients, ephemeral sessions and their subscriptions, the route cache, and every acknowledgement
that a publisher sees.

Doors: ``service`` runs the process; ``core.EdgeCore`` takes what the loop of ``hot`` cannot decide alone.

Always holds: An acknowledgement leaves only when every destination has acknowledged. Without a lease nothing is read
from clients. Nothing here is on disk.

May import: membership, wire, mqtt and conf; never another tier.
"""
