"""Paths of the API that are lists of rows, one row each. How they are asked is ``row_handlers.py``'s business.

Imports no HTTP: the command line takes its calls from here.
"""

from typing import NamedTuple

__all__ = ["LISTS", "ListPath", "path_of"]


class ListPath(NamedTuple):
    """``GET path``: rows of a kind; ``best`` is the column whose greatest values are wanted, "" for a walk."""

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
    ListPath("/raft", "raft", "Consensus as each router knows it"),
    ListPath("/slow", "slow", "Clients that do not follow", best="value"),
    ListPath("/drops", "drops", "Dropped messages by reason", best="count"),
    ListPath("/journal", "journal", "Refusals, drops, takeovers, ends of sessions", best="at_ms"),
    ListPath("/logs", "log", "Lines of the nodes' logs", best="at_ms"),
    ListPath("/config", "config", "Settings of nodes"),
    ListPath("/edge-listeners", "listeners", "Listeners of edges"),
    ListPath("/stats", "stats", "Figures of nodes"),
    ListPath("/traces", "traces", "Traces that run or ended"),
)


def path_of(what: str) -> str:
    """Return the path of the rows of a kind."""
    return next(listing.path for listing in LISTS if listing.what == what)
