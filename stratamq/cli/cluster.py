"""``stratamq cluster ...``: the cluster as a whole, and the routers' group."""

import typer

from stratamq.cli.commands import group, verb, verb_about

__all__ = ["PLACE_IN_THE_MAP", "register"]

PLACE_IN_THE_MAP = (
    "the cluster forgets its place, its weight and its drain, and what stands on its disk alone is lost; started again "
    "it is a new node"
)


def register(app: typer.Typer) -> None:
    """Add the group."""
    cluster = group(app, "cluster", "The cluster as a whole.")
    verb(cluster, "cluster status", "Leader, epochs, and every node with its lease.")
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
        "Take a router out of the group; a leader hands over first.",
        loses="the group has a vote fewer and bears fewer deaths, and its log is of no use any more; to come back it "
        "joins with an empty folder",
    )
    verb_about(cluster, "cluster transfer", "node", "Hand the leadership over to another router.", changes=True)
    verb_about(cluster, "cluster forget", "node", "Remove a dead node from the map.", loses=PLACE_IN_THE_MAP)
