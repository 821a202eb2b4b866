"""The HTTP service: an API for programs and a dashboard, on top of the queries of ``admin``.

Owns: paths and their roles, authentication and browser logins, problem responses, idempotent changes, the cluster
overview (metrics, alerts, one hour of history), and the dashboard's files.

Entry points: ``service.main`` runs it; ``app.make_application`` builds the application.

Invariant: A handler without a role is inaccessible. A change is in the audit log before it is answered, and a revoked
token has no effect. No response is cacheable, and no page loads anything from other hosts.

May import: the rest of admin; access, wire, mqtt and conf.
"""
