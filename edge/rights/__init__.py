"""Rights of an edge's clients: which rules each has, and what they let it publish, subscribe to and receive.

Owns: The rules of the listeners' files and roles, the classes of connections with equal rules, and their epoch.

Doors: ``sources`` says which rules a client has, ``client_rights`` answers the loop and the other rooms, ``sweep``
takes from live clients what new rules do not grant, ``rule_files`` reads what listeners name.

Always holds: A client that no rule is found for may do nothing. A decision is of the rules of now, or is made again.

May import: edge.loop and edge.node.
"""
