"""The process around a node's core: signals, leases, registration of routes, and startup conditions.

Owns: Data folder and identity, the orderly stop, the node's lease, and the announced routes.

Entry points: ``process`` runs a tier, ``lease_holder`` follows the map and the lease, ``route_registrar`` announces
routes.

Always holds: A node without a lease makes no decisions. A waiting node reports the reason.

May import: wire.links, wire.messages, wire.clock, conf.
"""
