"""The cluster's policy as data: users, groups, roles, bans and revocations, changed by commands of the routers' log.

Owns: The records, the commands with their ranges, the machine that carries them out, its steps and pages, and a node's
view of the part that every node holds.

Doors: ``commands`` may be proposed, ``machine`` carries them out, ``step`` says what changed and what was taken away,
``pages`` brings a view to a node, ``follower`` keeps it there, ``role_tiers`` compiles roles, ``settling`` says when a
verb that takes rights may return.

Always holds: ``apply`` never raises, and every router carries out or refuses a command alike. A policy that commands
can make can be sent. Nodes get no credentials but those of a user that they ask for by name.

May import: access.rules, access.limits.
"""
