"""Login: run a listener's chain of authenticators between CONNECT and the claim of a client ID.

Owns: The chains of an edge by listener, logins that wait for a job or an AUTH packet, ends of principals by the clock.

Doors: ``logins.Logins`` runs chains and takes results; ``listener_chain`` makes a chain of settings; ``job_desk``
bounds each kind of job, and a shell works at each desk.

Always holds: Text that a client gave becomes its user only through a step of the chain. A job that fails, finds no room
or has no desk refuses the client. A decision that waited is looked at again before its CONNACK is written.

May import: hot, node and listeners of this room, access, mqtt and conf.
"""
