"""Queries of a node, for all tiers: filters, pacing, and the server that answers from row sources.

Owns: The bounds of a query: rows, time, bytes, share of the loop, and length of the backlog.

Entry points: ``query_server`` queues queries and answers them at the end of iterations, ``source`` is the interface of
a resource.

Always holds: A query ends after a bounded number of rows. Without queries no code runs. A query changes no state.

May import: wire.messages, wire.decoding.
"""
