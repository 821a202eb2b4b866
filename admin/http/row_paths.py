"""Paths of the API that list rows, one row each; ``row_handlers.py`` implements them.

Imports no HTTP: the command line uses these paths too.
"""

from typing import NamedTuple

__all__ = ["LISTS", "ListPath", "path_of"]


class ListPath(NamedTuple):
    """``GET path``: rows of a kind; ``best`` is the default sort column, "" for a walk."""

    path: str
    what: str
    summary: str
    best: str = ""


LISTS = (
    ListPath("/clients", "clients", "Connections of clients"),
    ListPath("/sessions", "sessions", "Sessions at their partitions' primaries"),
    ListPath("/subscriptions", "subscriptions", "Subscriptions of sessions"),
    ListPath("/shares", "shares", "Shared groups"),
    ListPath("/retained", "retained", "Retained messages"),
    ListPath("/routes", "routes", "Cached topics at edges, filters at routers"),
    ListPath("/partitions", "replicas", "Copies of partitions"),
    ListPath("/raft", "raft", "Raft state of each router"),
    ListPath("/slow", "slow", "Slow clients", best="value"),
    ListPath("/drops", "drops", "Dropped messages by reason", best="count"),
    ListPath("/journal", "journal", "Refusals, drops, takeovers, ends of sessions", best="at_ms"),
    ListPath("/logs", "log", "Log lines of the nodes", best="at_ms"),
    ListPath("/config", "config", "Settings of nodes"),
    ListPath("/edge-listeners", "listeners", "Listeners of edges"),
    ListPath("/stats", "stats", "Statistics of nodes"),
    ListPath("/traces", "traces", "Running and ended traces"),
)


def path_of(what: str) -> str:
    """Return the path of the rows of a kind."""
    return next(listing.path for listing in LISTS if listing.what == what)
