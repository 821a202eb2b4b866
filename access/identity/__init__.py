"""Identity: the chain of authenticators of a listener, from the credentials of a CONNECT to a principal.

Owns: The steps of a chain and their answers, formats of passwords, tokens, certificates, CRLs and HTTP answers.

Doors: ``chain.Chain`` runs steps; ``principal`` has the types that steps, chain and shells share; each step has a file.

Always holds: A step that fails, raises or answers nonsense refuses the client. Text that no step verified never becomes
a user. Work that takes long, and each wait, is a typed job for the shell, so no step waits.

May import: the rules of this room, wire, mqtt and conf.
"""
