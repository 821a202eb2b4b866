"""``stratamq slow``, ``drops``, ``journal`` and ``log``: the largest or newest rows of all nodes."""

from typing import Annotated

import typer

from stratamq.cli.listing import ListOptions, add_list, list_options, listed
from stratamq.cli.node_requests import Options
from stratamq.cli.nouns import NOUNS

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("slow", help=NOUNS["slow"].text)(slow)
    for noun in ("drops", "journal", "log"):
        add_list(app, noun, noun)


@list_options
def slow(
    look: ListOptions,
    options: Options,
    by: Annotated[
        str,
        typer.Option("--by", help="age or window (both tiers), unsent (edges), queued or bytes (storage nodes)."),
    ] = "",
) -> None:
    """List clients that receive too slowly."""
    listed(NOUNS["slow"], look, options, {"by": by} if by else {})
