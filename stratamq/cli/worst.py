"""``stratamq slow``, ``drops``, ``journal`` and ``log``: the greatest or newest rows of all nodes."""

import typer

from stratamq.cli.listing import add_list

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for noun in ("slow", "drops", "journal", "log"):
        add_list(app, noun, noun)
