"""Adapters that detect the interest of a broker's clients: one file for each kind of broker.

Owns: the meaning of log lines and events, the clients that count, and the rows that store them.
Entry points: ``interest.Adapter``; ``mosquitto``, ``stratamq`` and ``static`` implement it.
Invariant: in doubt a filter counts as wanted, because too many filters cost bandwidth and too few lose messages.
Filters
that begin with $ are never federated; of a shared subscription the filter counts.
May import: the rest of ``gateways/federation``, and its permitted imports.
"""
