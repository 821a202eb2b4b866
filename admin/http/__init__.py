"""The HTTP service: an API for programs and a dashboard for people, over what the rest of this room asks.

Owns: Paths and their roles, who asks and how browsers log in, problems, repeated changes, the service's own look at
the cluster (figures, alarms, an hour of history), and the dashboard's files.

Doors: ``service.main`` runs it; ``app.make_application`` is the application.

Always holds: A handler without a role is closed. A change has its line in the audit before it is answered, and a token
that was revoked opens nothing. No answer is kept by a cache, and no page loads anything from elsewhere.

May import: the rest of admin; access, wire, mqtt and conf.
"""
