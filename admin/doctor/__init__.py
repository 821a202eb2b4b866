"""Finds problems of a cluster and of this host, with a remedy for each.

Owns: The checks of `stratamq doctor`: their names, bounds and advice.

Entry points: ``examine`` queries the nodes, ``cluster.judge`` checks the results, ``host.judge`` checks this host.

Invariant: The checks are read-only, and only ``examine`` sends queries. A check that could not run gives the reason
(``skipped``). A finding other than ``ok`` has a remedy.

May import: the rows in ``wire.messages``, ``admin.queries`` and ``admin.alerts``, and conf.
"""
