"""Operators: which role may give which verb, and the audit of what was asked, done and refused.

Owns: The roles in operators' certificates, the table of all verbs with role and arguments, and the chain of audit
lines.

Doors: ``verbs`` judges a question, ``orders`` what a router passes on to a node, ``audit_chain`` makes and checks
lines, ``audit_file`` is the shell that writes them.

Always holds: A verb without a row is refused. An argument is written to the audit only if it is named there as one that
is no secret. A verb that changes something is refused where its line cannot be written.

May import: nothing of access.
"""
