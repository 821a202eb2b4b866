"""Permissions of an edge's clients: the rules of each, and authorization of publish, subscribe and delivery.

Owns: The rules of the listeners' files and roles, the classes of connections with equal rules, and their epoch. Entry
points: ``sources`` finds the rules of a client, ``client_rights`` authorizes for the loop and other packages, ``sweep``
removes filters that new rules refuse, ``rule_files`` reads the files of listeners. Invariant: A client without rules
may do nothing. A verdict is of the current rules, or is computed again. May import: edge.loop and edge.node.
"""
