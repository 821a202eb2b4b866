"""Access: authenticates clients, authorizes them and operators' verbs, and limits their use.

Owns: rules, authenticators with their chain, limits per address and name, the replicated policy, verbs of operators and
their audit log.

Entry points: ``rules`` authorizes clients, ``identity`` authenticates them, ``limits`` bounds their use. ``policy``
stores users, roles, bans and revocations of the whole cluster, ``operators`` defines the verbs, ``files`` reads
operators' files.

Invariant: Deny is the only fallback: no setting, error, empty file or missing backend widens a right. Except for
``operators.audit_file``, a shell that writes the audit log, code here never waits, opens a socket, reads a clock or
uses randomness.

May import: wire, mqtt and conf.
"""
