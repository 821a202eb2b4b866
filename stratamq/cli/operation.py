"""``stratamq operation list | show | cancel``: long-running operations of the cluster."""

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from stratamq.cli.cluster_requests import end_partial, say_partial, with_cluster
from stratamq.cli.commands import asks, group
from stratamq.cli.lists import (
    LIMIT,
    AllOption,
    ColumnsOption,
    FilterOption,
    LimitOption,
    ListRequest,
    NodeOption,
    check_nodes,
    wish,
)
from stratamq.cli.node_requests import Options, answer, show
from stratamq.cli.output import OutputFormat, print_result, printable
from stratamq.cli.watching import WATCH_S, EveryOption, WatchOption, again_and_again

if TYPE_CHECKING:
    from admin.operations import RunningCommand
    from admin.scatter_gather import MissingRows
    from wire.messages.operators import AdminReply

__all__ = ["register"]

TABLES = (OutputFormat.TABLE, OutputFormat.WIDE)
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Operation ID from `operation list`.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    operations = group(app, "operation", "Long-running operations: rebalances, drains, exports.")
    operations.command("list")(list_operations)
    operations.command("show")(show_operation)
    operations.command("cancel")(cancel)


@asks
def list_operations(
    options: Options,
    filters: FilterOption = [],  # noqa: B006  typer copies it for each call
    nodes: NodeOption = [],  # noqa: B006  likewise
    columns: ColumnsOption = "",
    limit: LimitOption = LIMIT,
    everything: AllOption = False,
    watch: WatchOption = False,
    every_s: EveryOption = WATCH_S,
) -> None:
    """List operations that are running, paused, or finished last."""
    from admin.operations import RunningCommand

    listing = wish(filters, columns, limit, everything=everything, known=RunningCommand._fields)
    look = partial(_print_operations, options, listing, nodes)
    again_and_again(look, options.output, every_s, watch=watch and not options.show_api)


def _print_operations(options: Options, listing: ListRequest, nodes: list[str]) -> None:
    found, silent = _found(options)
    if nodes:
        check_nodes(nodes, [row["node"] for row in answer("node list", {}, options)["nodes"]])
    rows, passed = listing.chosen([row._asdict() for row in found if not nodes or row.node in nodes])
    if rows or options.output not in (*TABLES, OutputFormat.JSONL, OutputFormat.CSV):
        print_result(rows, options.output)
    if not rows and options.output in TABLES and sys.stderr.isatty():
        typer.echo("stratamq: no operations found" + " for this filter" * bool(listing.filters), err=True)
    if len(rows) < passed:
        typer.echo(f"stratamq: {len(rows)} of {passed} operations shown: --limit or --all shows more", err=True)
    end_partial(silent)


@asks
def show_operation(options: Options, name: IdArgument) -> None:
    """Show one operation."""
    from admin.operations import find

    found, silent = _found(options)
    print_result(find(found, name)._asdict(), options.output)
    end_partial(silent)


@asks
def cancel(
    options: Options,
    name: IdArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the command that would cancel it.")] = False,
) -> None:
    """Cancel an operation: abort a rebalance (`ring abort`), undrain a node, or stop an export."""
    from admin.operations import EXPORT_CANCEL, find, ordered
    from conf.errors import ExitCode, UserError

    if options.show_api or options.api is not None:
        _cancel_by_api(options, name, dry_run=dry_run)
        return
    found, silent = _found(options)
    say_partial(silent)
    operation = find(found, name)
    if not operation.cancel:
        raise UserError(f"{operation.id} is {operation.state}: it cannot be cancelled", ExitCode.FAILED)
    if dry_run:
        print_result({"id": operation.id, "would": operation.cancel, "node": operation.node}, options.output)
        return
    if operation.cancel != EXPORT_CANCEL:
        show(operation.cancel, {"node": operation.node} if operation.node else {}, options)
        return
    reply: AdminReply = with_cluster(options, lambda cluster: ordered(cluster, operation.node, operation.cancel))
    if not reply.ok:
        raise UserError(reply.error, reply.exit_code or ExitCode.FAILED)
    print_result(reply.result, options.output)


def _cancel_by_api(options: Options, name: str, *, dry_run: bool) -> None:
    from admin.api import ApiCall, read_answer
    from stratamq.cli.api_requests import ASK_S, api_of

    call = ApiCall.of("DELETE", "operations", name, **({"dry_run": "true"} if dry_run else {}))
    if options.show_api:
        typer.echo(printable(call.line()))
        return
    api = api_of(options)
    print_result(read_answer(api.address, api.ask(call, ASK_S)[1], object), options.output)


def _found(options: Options) -> "tuple[list[RunningCommand], tuple[MissingRows, ...]]":
    from admin.operations import exports_of, operations

    if options.show_api or options.api is not None:
        return _found_by_api(options)
    ring, nodes = answer("ring status", {}, options), answer("node list", {}, options)["nodes"]
    exports, silent = with_cluster(options, exports_of)
    return operations(ring, nodes, exports), silent


def _found_by_api(options: Options) -> "tuple[list[RunningCommand], tuple[MissingRows, ...]]":
    """Return the operations from the HTTP service.

    Raises:
        typer.Exit: ``--show-api``: the request is printed.
    """
    from admin.http.operation_page import OperationPage
    from admin.scatter_gather import MissingRows
    from stratamq.cli.api_requests import page_of

    page = page_of(options, "/operations", OperationPage)
    return [row.operation() for row in page.rows], tuple(MissingRows(one.node, one.why) for one in page.partial)
