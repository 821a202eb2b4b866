"""Identity: a listener's chain of authenticators, from the credentials of a CONNECT to a principal.

Owns: The steps of a chain and their answers, formats of passwords, tokens, certificates, CRLs and HTTP responses.

Entry points: ``chain.Chain`` runs steps; ``principal`` has the types shared by steps, chain and shells; each step has a
file.

Invariant: A step that fails, raises or returns an invalid answer refuses the client. Text that no step verified never
becomes a user. Long work and waiting are typed jobs for the shell, so steps never block.

May import: access.rules, wire, mqtt and conf.
"""
