"""``stratamq store aside`` and ``aside-remove``: quarantined stores of running storage nodes."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratamq.cli.cluster_requests import end_partial, with_cluster
from stratamq.cli.commands import asks
from stratamq.cli.node_requests import Options
from stratamq.cli.output import OutputFormat, print_result

if TYPE_CHECKING:
    from admin.queries import Cluster
    from wire.messages.operators import AdminReply

__all__ = ["add_aside"]

ORDER_S = 10.0
LIST, REMOVE = "store aside", "store aside remove"
NodeOption = Annotated[str, typer.Option("--node", help="Only this storage node.")]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="A running storage node.")]
StoreArgument = Annotated[str, typer.Argument(metavar="STORE", help="Store name from `store aside`.")]


def add_aside(stores: typer.Typer) -> None:
    """Add the commands."""
    stores.command("aside")(aside)
    stores.command("aside-remove")(remove)


@asks
def aside(options: Options, node: NodeOption = "") -> None:
    """List the damaged stores that running storage nodes have quarantined."""
    from admin.scatter_gather import MissingRows
    from conf.errors import ExitCode, UserError
    from stratamq.cli.api_requests import show_call

    if options.show_api and node:
        show_call(LIST, {"node": node})
    found: list[dict[str, object]] = []
    missing: list[MissingRows] = []
    for name, reply in _ordered(options, LIST, {}, node).items():
        if reply.ok and isinstance(reply.result, dict):
            found += [{"node": name} | store for store in reply.result["stores"]]
        elif reply.exit_code == ExitCode.NOT_READY:
            missing.append(MissingRows(name, reply.error))
        else:
            raise UserError(reply.error, reply.exit_code or ExitCode.FAILED)
    if found or options.output not in (OutputFormat.TABLE, OutputFormat.WIDE, OutputFormat.JSONL, OutputFormat.CSV):
        print_result(found, options.output)
    end_partial(missing)


@asks
def remove(
    options: Options,
    node: NodeArgument,
    name: StoreArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the data that would be deleted.")] = False,
) -> None:
    """Delete a quarantined store permanently; first make sure that no other copy needs it."""
    from conf.errors import ExitCode, UserError
    from stratamq.cli.api_requests import show_call

    arguments = {"name": name, "dry_run": dry_run}
    if options.show_api:
        show_call(REMOVE, {"node": node, **arguments})
    if not yes and not dry_run:
        text = f"`store aside-remove {node[:64]} {name[:128]}` deletes it permanently; repeat the command with --yes"
        raise UserError(text, ExitCode.USAGE)
    reply = _ordered(options, REMOVE, arguments, node)[node]
    if not reply.ok:
        raise UserError(reply.error, reply.exit_code or ExitCode.FAILED)
    print_result(reply.result, options.output)


def _ordered(options: Options, verb: str, arguments: dict[str, object], node: str) -> "dict[str, AdminReply]":
    """Send a request to one storage node, or to all of them; return the replies by node.

    Raises:
        UserError: The node is not a live storage node, or there is none.
    """
    import trio

    from conf.errors import ExitCode, UserError
    from stratamq.cli.api_requests import ask_api
    from wire.messages.hello import TIER_STORAGE

    async def ask(cluster: "Cluster") -> "dict[str, AdminReply]":
        known = sorted(entry.node for entry in cluster.map.live(TIER_STORAGE))
        if not known:
            raise UserError("no storage node is alive", ExitCode.NOT_READY)
        if node and node not in known:
            raise UserError(f"{node[:64]!r} is not a live storage node: use one of {', '.join(known)}", ExitCode.USAGE)
        replies: dict[str, AdminReply] = {}
        for name in [node] if node else known:
            if options.api is not None:
                replies[name] = await trio.to_thread.run_sync(ask_api, verb, {"node": name, **arguments}, options)
            else:
                links: Any = cluster.links
                replies[name] = await links.order(name, verb, arguments, ORDER_S)
        return replies

    return with_cluster(options, ask)
