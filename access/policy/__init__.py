"""The cluster's policy: users, groups, roles, bans and revocations, changed by commands in the routers' log.

Owns: The records, the commands with their ranges, the state machine, its steps and pages, and the node's view of the
shared part.

Entry points: ``commands`` defines commands, ``machine`` applies them, ``step`` holds the changes and removed rights.
``pages`` sends a view to a node, ``follower`` updates it, ``role_tiers`` compiles roles, ``settling`` decides when a
verb that revokes rights may return.

Invariant: ``apply`` never raises, and every router applies or refuses a command alike. Every policy that commands can
create can be sent. Nodes receive credentials only of a user that they request by name.

May import: access.rules, access.limits.
"""
