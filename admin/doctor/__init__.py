"""Finds what is wrong with a cluster and with this host, and what to do about each.

Owns: The checks of `stratamq doctor`: their names, bounds and advice.

Doors: ``examine`` asks the nodes, ``cluster.judge`` judges what they said, ``host.judge`` this host.

Always holds: Nothing is changed, and only ``examine`` asks anybody. A check that could not look says why
(``skipped``); each finding says what to do where it is not ``ok``.

May import: the rows in ``wire.messages``, ``admin.queries`` and ``admin.alerts``, and conf.
"""
