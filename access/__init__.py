"""Access: decide which client a connection is, what it may do, how much of it, and which verb an operator may give.

Owns: Rules and authenticators with their chain, limits of addresses and names, the replicated policy, verbs of
operators and their audit.

Doors: ``rules`` decides what a client may do, ``identity`` which client it is, ``limits`` how much, ``policy`` keeps
users, roles, bans and revocations for the whole cluster, ``operators`` knows the verbs; ``files`` reads the files of an
operator.

Always holds: Deny is the only fallback: no setting, error, empty file or missing backend widens a right. Nothing here
waits, opens a socket, reads a clock or rolls dice, but for ``operators.audit_file``, a shell that writes the audit.

May import: wire, mqtt and conf.
"""
