"""Operators' queries at an edge: rows of clients, subscriptions, routes and metrics, with bounded work.

Owns: Links of operators at this edge, their queries, and the row sources over the other packages. Entry points:
``operators`` handles messages of operators, ``sources`` collects the row sources. Invariant: A query changes no state.
Without operators it costs the loop no time. May import: edge.loop, edge.node, edge.rights, edge.clients, edge.cluster,
edge.routes, edge.subscriptions.
"""
