"""A node around its core: process, signals, leases, registration of routes, and what it waits for.

Owns: Data folder and identity, the orderly stop, the lease that the node holds, and the routes that it has announced.

Doors: ``process`` runs a tier, ``lease_holder`` follows the map and the lease, ``route_registrar`` announces routes.

Always holds: Without a lease a node decides nothing. A node that waits says what for.

May import: wire.links, wire.messages, wire.clock, conf.
"""
