"""``stratamq client ...``: connected clients."""

from typing import Annotated

import typer

from stratamq.cli.asking import Options, show_nodes
from stratamq.cli.verbs import asks, group

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group(app, "client", "Connected clients.").command("kick")(kick)


@asks
def kick(
    options: Options,
    client_id: Annotated[str, typer.Argument(metavar="CLIENT_ID")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show where it is connected.")] = False,
) -> None:
    """End the connection of a client; it may come back, unless it is banned (`stratamq ban add`)."""
    from conf.errors import ExitCode, UserError

    result = show_nodes("client kick", {"client_id": client_id, "dry_run": dry_run}, options, only_counted=True)
    if not any(row["count"] for row in result["nodes"]):
        raise UserError(f"no edge has a connection of client {client_id!r}", ExitCode.FAILED)
