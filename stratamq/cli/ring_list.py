"""``stratamq ring show``: partitions and shards; a table adds metrics of the primaries.

Other formats and ``--columns`` show only the router's rows.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratamq.cli.cluster_requests import end_partial, with_cluster
from stratamq.cli.commands import asks
from stratamq.cli.lists import (
    LIMIT_MAX,
    AllOption,
    ColumnsOption,
    FilterOption,
    ListRequest,
    NodeOption,
    check_nodes,
    wish,
)
from stratamq.cli.node_requests import Options, answer
from stratamq.cli.output import OutputFormat, print_result
from stratamq.cli.router_lists import COLUMNS, print_list
from stratamq.cli.watching import WATCH_S, EveryOption, WatchOption, again_and_again

if TYPE_CHECKING:
    from admin.queries import Cluster
    from admin.scatter_gather import MissingRows
    from wire.messages.node_rows import ReplicaRow

__all__ = ["show_ring"]

TABLES = (OutputFormat.TABLE, OutputFormat.WIDE)
SHOWN = 8  # columns of a normal table
ROWS_MAX = 100_000  # copies; a cluster has at most 65 536 partitions
FIGURES = ("partition", "node", "role", "op_index", "lag_ops", "sessions")


@asks
def show_ring(
    options: Options,
    filters: FilterOption = [],  # noqa: B006  # typer copies it for each call
    nodes: NodeOption = [],  # noqa: B006  # likewise
    columns: ColumnsOption = "",
    limit: Annotated[int, typer.Option("--limit", help="Maximum number of partitions; default: all.")] = LIMIT_MAX,
    everything: AllOption = False,
    watch: WatchOption = False,
    every_s: EveryOption = WATCH_S,
) -> None:
    """Show partitions and shards: primary, copies, epochs, lag; filters select partitions only."""
    listing = wish(filters, columns, limit, everything=everything, known=COLUMNS["partitions"])
    again_and_again(
        lambda: _show(options, listing, nodes, whole=not (filters or nodes or columns) and limit == LIMIT_MAX),
        options.output,
        every_s,
        watch=watch and not options.show_api,
    )


def _show(options: Options, listing: ListRequest, nodes: list[str], *, whole: bool) -> None:
    result = answer("ring show", {}, options)
    if nodes:
        check_nodes(nodes, [row["node"] for row in answer("node list", {}, options)["nodes"]])
    kept = [row for row in result["partitions"] if not nodes or {*nodes} & {*row["in_sync"], *row["joining"]}]
    rows, passed = listing.chosen(kept)
    missing: tuple[MissingRows, ...] = ()
    if options.output in TABLES and not listing.columns:
        metrics, zones, missing = with_cluster(options, _figures)
        cells = [_cells(row, metrics.get(row["partition"]), zones) for row in rows]
        wide = options.output is OutputFormat.WIDE
        rows = [row if wide else {name: row[name] for name in list(row)[:SHOWN]} for row in cells]
    shown = result | {"partitions": rows} if whole else {"map_epoch": result["map_epoch"], "partitions": rows}
    if whole:  # shards and delegations too
        print_result(shown, options.output)
    else:
        print_list(shown, "partitions", options.output)
    if len(rows) < passed:
        typer.echo(f"stratamq: {len(rows)} of {passed} partitions shown: --limit or --all shows more", err=True)
    end_partial(missing)


async def _figures(
    cluster: "Cluster",
) -> "tuple[dict[int, ReplicaRow], dict[str, str], tuple[MissingRows, ...]]":
    """Return the primaries' metrics of their partitions, and the zone of each node."""
    from admin.queries import ListQuery, walk

    listed = await walk(cluster, "replicas", ListQuery({"role": "primary"}, limit=ROWS_MAX, columns=FIGURES))
    metrics = {row.partition: row for _, row in listed.rows if row.partition is not None}
    return metrics, {entry.node: entry.zone for entry in cluster.map.nodes.values()}, listed.partial


def _cells(row: dict[str, Any], metrics: "ReplicaRow | None", zones: dict[str, str]) -> dict[str, object]:
    """Return the cells of a partition; without metrics, only those of the router."""
    return {
        "partition": row["partition"],
        "primary": row["primary"],
        "in_sync": row["in_sync"],
        "epoch": row["epoch"],
        "op_index": metrics.op_index if metrics is not None else None,
        "lag": metrics.lag_ops if metrics is not None else None,
        "sessions": metrics.sessions if metrics is not None else None,
        "state": row.get("state"),
        "moves_pending": len(row["joining"]),
        "zones": list(dict.fromkeys(zone for node in row["in_sync"] if (zone := zones.get(node, "")))),
        "joining": row["joining"],
        "keys": row.get("keys"),
        "bytes": row.get("bytes"),
    }
