"""Looks at an edge: its clients, subscriptions, routes and figures, a bounded number at a time.

Owns: Links of operators at this edge, their questions, and what is read of the other rooms to answer them.

Doors: ``operators`` takes what operators say, ``sources`` joins what each kind of look shows.

Always holds: A look changes nothing. No operator, no work: the loop pays for none of this while nobody asks.

May import: edge.loop, edge.node, edge.rights, edge.clients, edge.cluster, edge.routes, edge.subscriptions.
"""
