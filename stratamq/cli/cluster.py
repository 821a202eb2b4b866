"""``stratamq cluster ...``: the cluster as a whole, and the routers' group."""

import typer

from stratamq.cli.verbs import group, verb, verb_about

__all__ = ["register"]


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
        cluster, "cluster leave", "node", "Take a router out of the group; a leader hands over first.", confirm=True
    )
    verb_about(cluster, "cluster transfer", "node", "Hand the leadership over to another router.", changes=True)
    verb_about(cluster, "cluster forget", "node", "Remove a dead node from the map.", confirm=True)
