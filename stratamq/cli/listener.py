"""``stratamq listener ...``: listeners of the edges."""

from typing import Annotated

import typer

from stratamq.cli.commands import asks, group
from stratamq.cli.listing import add_list
from stratamq.cli.node_requests import Options, show_nodes

__all__ = ["register"]

ListenerArgument = Annotated[
    str, typer.Argument(metavar="LISTENER", help="Name of the listener in the edges' settings.")
]
NodeOption = Annotated[
    str, typer.Option("--node", help="Only on this edge; default: on every edge that has the listener.")
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Only print the changes.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    listeners = group(app, "listener", "Listeners of the edges.")
    add_list(listeners, "list", "listener")
    listeners.command("pause")(pause)
    listeners.command("resume")(resume)


@asks
def pause(options: Options, listener: ListenerArgument, node: NodeOption = "", dry_run: DryOption = False) -> None:
    """Refuse new clients until `resume` or a restart of the edge; connected clients stay."""
    _order("listener pause", listener, node, options, dry_run=dry_run)


@asks
def resume(options: Options, listener: ListenerArgument, node: NodeOption = "", dry_run: DryOption = False) -> None:
    """Accept new clients at a paused listener again."""
    _order("listener resume", listener, node, options, dry_run=dry_run)


def _order(verb: str, listener: str, node: str, options: Options, *, dry_run: bool) -> None:
    from admin.not_found import nothing_found
    from conf.errors import ExitCode, UserError

    arguments: dict[str, object] = {"listener": listener, "node": node, "dry_run": dry_run}
    result = show_nodes(verb, arguments, options, only_counted=True)
    if missing := nothing_found(verb, arguments, result):
        raise UserError(missing, ExitCode.FAILED)
