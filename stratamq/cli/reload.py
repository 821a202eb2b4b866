"""``stratamq reload``: nodes read their settings and files again, each all of them or none."""

from typing import Annotated

import typer

from stratamq.cli.commands import asks
from stratamq.cli.node_requests import Options, show_nodes

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("reload")(reload)


@asks
def reload(
    options: Options,
    node: Annotated[str, typer.Option("--node", help="This one only; default: every node that is alive.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell the difference.")] = False,
) -> None:
    """Have nodes take up certificates, lists, users, rules and what else may change while they run."""
    show_nodes("reload", {"node": node, "dry_run": dry_run}, options)
