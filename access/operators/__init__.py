"""Operators: authorizes their verbs, and writes the audit log of requests, changes and refusals.

Owns: The roles in operators' certificates, the table of verbs with role and arguments, and the chain of audit lines.

Entry points: ``commands`` authorizes a request, ``orders`` the orders that a router forwards to a node. ``audit_chain``
encodes and verifies lines, ``audit_file`` is the shell that writes them.

Invariant: A verb without a row is refused. The audit log contains only arguments that are listed as not secret. A verb
that changes state is refused if its line cannot be written.

May import: nothing of access.
"""
