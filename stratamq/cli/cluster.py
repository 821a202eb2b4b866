"""``stratamq cluster ...``: the status of the cluster, and members of the routers' Raft group."""

import typer

from stratamq.cli.commands import group, verb, verb_about

__all__ = ["PLACE_IN_THE_MAP", "register"]

PLACE_IN_THE_MAP = (
    "its place, weight and drain state are removed from the map, and data that only its disk has is lost; if it starts "
    "again, it is a new node"
)


def register(app: typer.Typer) -> None:
    """Add the group."""
    cluster = group(app, "cluster", "The cluster as a whole.")
    verb(cluster, "cluster status", "Show the leader, the epochs, and every node with its lease.")
    verb_about(
        cluster,
        "cluster join",
        "node",
        "Make a waiting router (router.join = true) a voter of the group.",
        changes=True,
    )
    verb_about(
        cluster,
        "cluster leave",
        "node",
        "Remove a router from the group; a leader transfers leadership first.",
        loses="the group has one vote fewer and tolerates fewer failures; the router's log becomes useless, so it "
        "needs an empty data folder to rejoin",
    )
    verb_about(cluster, "cluster transfer", "node", "Transfer leadership to another router.", changes=True)
    verb_about(cluster, "cluster forget", "node", "Remove a dead node from the map.", loses=PLACE_IN_THE_MAP)
