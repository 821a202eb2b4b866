"""``stratamq node ...``: the nodes of the map."""

import typer

from stratamq.cli.verbs import group, verb, verb_about

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the group."""
    node = group(app, "node", "Its nodes.")
    verb(node, "node list", "Every node: tier, state, address, incarnation.")
    verb_about(node, "node drain", "node", "Move everything away from a node.")
    verb_about(node, "node undrain", "node", "Let a drained node take its share again.")
