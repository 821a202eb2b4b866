"""Login: runs a listener's chain of authentication steps between CONNECT and the claim of a client ID.

Owns: The chains of an edge by listener, logins that wait for a job or an AUTH packet, expiry of principals. Entry
points: ``logins.ClientLogins`` runs chains and handles results; ``listener_chain`` builds a chain from settings;
``auth_jobs`` bounds each kind of job, and a shell runs the jobs of each queue. Invariant: Text of a client becomes its
user only through a step of the chain. A job that fails, or finds its queue full or missing, refuses the client. A
decision that waited is checked again before its CONNACK is written. May import: loop, node and listeners of this
package, access, mqtt and conf.
"""
