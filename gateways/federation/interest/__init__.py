"""Adapters that learn what a broker's clients want: one file for each kind of broker.

Owns: what a line of a log or an event means, who still counts, and which rows keep it.

Doors: ``interest.Adapter``; ``mosquitto``, ``stratamq`` and ``static`` make one each.

Always holds: a doubt counts as interest, because too many filters cost bandwidth and too few lose messages. Filters
that begin with $ never federate; of a shared subscription the filter counts.

May import: the rest of ``gateways/federation``, and what that may.
"""
