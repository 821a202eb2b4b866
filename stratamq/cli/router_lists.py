"""Lists from a router: nodes, members, policy and placement, with their columns and pages.

Filters, columns and limits are validated before the request; a router returns pages of names.
"""

from typing import Annotated, Any

import typer

from stratamq.cli.commands import asks
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
from stratamq.cli.node_requests import Options, answer
from stratamq.cli.output import OutputFormat, print_result
from stratamq.cli.watching import WATCH_S, EveryOption, WatchOption, again_and_again

__all__ = ["COLUMNS", "list_pages", "list_whole", "print_list"]

COUNT_MAX = 1_000  # of one page
AfterOption = Annotated[str, typer.Option("--after", help="Start after this name: `next` of the previous page.")]
COLUMNS: dict[str, tuple[str, ...]] = {  # as routers name them
    "nodes": (
        *("node", "tier", "state", "gossip", "incarnation", "address", "clients", "connected", "load", "zone"),
        *("weight", "lease_s", "map_epoch", "primaries", "replicas", "joining", "shards"),
    ),
    "members": ("member", "state", "since_s", "tier", "address", "incarnation", "zone", "asked"),
    "users": ("user", "enabled", "password", "scram", "roles", "groups", "limits", "made", "changed"),
    "roles": ("role", "priority", "rules"),
    "groups": ("group", "roles", "limits"),
    "bans": ("kind", "value", "until", "reason"),
    "tokens": ("token", "role", "made_at", "until"),
    "partitions": ("partition", "epoch", "primary", "in_sync", "joining", "keys", "bytes", "state"),
}


def list_whole(to: typer.Typer, verb: str, what: str, node_column: str, text: str) -> None:
    """Add a list that a router returns in one reply; ``node_column`` holds the node of a row."""

    @asks
    def command(
        options: Options,
        filters: FilterOption = [],  # noqa: B006  # typer copies it for each call
        nodes: NodeOption = [],  # noqa: B006  # likewise
        columns: ColumnsOption = "",
        limit: LimitOption = LIMIT,
        everything: AllOption = False,
        watch: WatchOption = False,
        every_s: EveryOption = WATCH_S,
    ) -> None:
        listing = wish(filters, columns, limit, everything=everything, known=COLUMNS[what])

        def run() -> None:
            result = answer(verb, {}, options)
            check_nodes(nodes, [row[node_column] for row in result[what]])
            rows, passed = listing.chosen([row for row in result[what] if not nodes or row[node_column] in nodes])
            print_list(result | {what: rows}, what, options.output)
            if len(rows) < passed:
                _say_cut(f"{len(rows)} of {passed}", what)

        again_and_again(run, options.output, every_s, watch=watch and not options.show_api)

    to.command("list", help=text)(command)


def list_pages(to: typer.Typer, noun: str, text: str) -> None:
    """Add the list of one part of the policy, which has pages."""

    @asks
    def command(
        options: Options,
        filters: FilterOption = [],  # noqa: B006  # typer copies it for each call
        columns: ColumnsOption = "",
        limit: LimitOption = LIMIT,
        everything: AllOption = False,
        after: AfterOption = "",
        watch: WatchOption = False,
        every_s: EveryOption = WATCH_S,
    ) -> None:
        what = f"{noun}s"
        listing = wish(filters, columns, limit, everything=everything, known=COLUMNS[what])

        def run() -> None:
            _show_pages(f"{noun} list", what, listing, after, options)

        again_and_again(run, options.output, every_s, watch=watch and not options.show_api)

    to.command("list", help=text)(command)


def _show_pages(verb: str, what: str, listing: ListRequest, after: str, options: Options) -> None:
    """Request pages until enough rows match the filters; print them.

    ``next`` is the cursor of the next page; None at the end or if a filter ends inside a page.
    """
    rows: list[dict[str, Any]] = []
    while True:
        left = listing.limit - len(rows) if listing.limit else 0
        count = min(left, COUNT_MAX) if left and not listing.filters else COUNT_MAX
        page = answer(verb, {"after": after, "count": count}, options)
        found, passed = listing._replace(limit=left).chosen(page[what])
        rows += found
        cut = len(found) < passed
        if cut or page["next"] is None or (listing.limit and len(rows) >= listing.limit):
            break
        after = page["next"]
    following = None if cut else page["next"]
    shown = page | {"next": following, what: rows}
    if following is None and options.output in (OutputFormat.TABLE, OutputFormat.WIDE):
        del shown["next"]  # tables omit empty fields
    print_list(shown, what, options.output)
    if cut or following is not None:
        _say_cut(str(len(rows)), what)


def print_list(result: dict[str, Any], what: str, output: OutputFormat) -> None:
    """Print a list; JSON lines and CSV contain only its rows."""
    if output not in (OutputFormat.JSONL, OutputFormat.CSV):
        print_result(result, output)
    elif result[what]:
        print_result(result[what], output)


def _say_cut(shown: str, what: str) -> None:
    typer.echo(f"stratamq: {shown} {what} shown: --limit or --all shows more", err=True)
