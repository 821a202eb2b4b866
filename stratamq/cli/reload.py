"""``stratamq reload``: nodes reload settings and files; a node applies all changes or none."""

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
    node: Annotated[str, typer.Option("--node", help="Only this node; default: every live node.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the changes.")] = False,
) -> None:
    """Reload certificates, revocation lists, users, rules and other reloadable settings on nodes."""
    show_nodes("reload", {"node": node, "dry_run": dry_run}, options)
