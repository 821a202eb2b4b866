"""Paths of the API that are lists of rows, one row each. How they are asked is ``row_handlers.py``'s business.

Imports no HTTP: the command line takes its calls from here.
"""

from typing import NamedTuple

__all__ = ["LISTS", "Listing", "path_of"]


class Listing(NamedTuple):
    """``GET path``: rows of a kind; ``best`` is the column whose greatest values are wanted, "" for a walk."""

    path: str
    what: str
    summary: str
    best: str = ""


LISTS = (
    Listing("/clients", "clients", "Connections of clients"),
    Listing("/sessions", "sessions", "Sessions at their partitions' primaries"),
    Listing("/subscriptions", "subscriptions", "Subscriptions of sessions"),
    Listing("/shares", "shares", "Shared groups"),
    Listing("/retained", "retained", "Retained messages"),
    Listing("/routes", "routes", "Cached topics at edges, filters at routers"),
    Listing("/partitions", "replicas", "Copies of partitions"),
    Listing("/raft", "raft", "Consensus as each router knows it"),
    Listing("/slow", "slow", "Clients that do not follow", best="value"),
    Listing("/drops", "drops", "Dropped messages by reason", best="count"),
    Listing("/journal", "journal", "Refusals, drops, takeovers, ends of sessions", best="at_ms"),
    Listing("/logs", "log", "Lines of the nodes' logs", best="at_ms"),
    Listing("/config", "config", "Settings of nodes"),
    Listing("/edge-listeners", "listeners", "Listeners of edges"),
    Listing("/stats", "stats", "Figures of nodes"),
    Listing("/traces", "traces", "Traces that run or ended"),
)


def path_of(what: str) -> str:
    """Return the path of the rows of a kind."""
    return next(listing.path for listing in LISTS if listing.what == what)
