"""``stratamq listener ...``: doors of the edges."""

import typer

from stratamq.cli.listing import add_list
from stratamq.cli.verbs import group

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the group."""
    add_list(group(app, "listener", "Listeners of the edges."), "list", "listener")
