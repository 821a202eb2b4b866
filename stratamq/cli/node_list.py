"""``stratamq node list``: the nodes of the cluster map; a table adds metrics of each node.

Rates are computed from two queries a second apart. Other formats and ``--columns`` show only the router's rows.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from stratamq.cli import cells
from stratamq.cli.cluster_requests import end_partial, with_cluster
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
from stratamq.cli.rates import DELIVERED, RECEIVED, rate_of
from stratamq.cli.router_lists import COLUMNS, print_list
from stratamq.cli.watching import WATCH_S, EveryOption, WatchOption, again_and_again

if TYPE_CHECKING:
    from admin.queries import Cluster
    from admin.scatter_gather import MissingRows
    from wire.messages.node_rows import StatsRow

__all__ = ["list_nodes"]

APART_S = 1.0
NODES_MAX = 10_000
TABLES = (OutputFormat.TABLE, OutputFormat.WIDE)
TERM, RAFT_LAG, COPY_LAG = "stratamq_raft_term", "stratamq_raft_commit_lag_entries", "stratamq_partition_lag_ops"


@asks
def list_nodes(
    options: Options,
    filters: FilterOption = [],  # noqa: B006  # typer copies it for each call
    nodes: NodeOption = [],  # noqa: B006  # likewise
    columns: ColumnsOption = "",
    limit: LimitOption = LIMIT,
    everything: AllOption = False,
    watch: WatchOption = False,
    every_s: EveryOption = WATCH_S,
) -> None:
    """List all nodes: tier, state, version, clients, messages per second, partitions, load, disk."""
    listing = wish(filters, columns, limit, everything=everything, known=COLUMNS["nodes"])
    look = partial(_list, options, listing, nodes)
    again_and_again(look, options.output, every_s, watch=watch and not options.show_api)


def _list(options: Options, listing: ListRequest, nodes: list[str]) -> None:
    result = answer("node list", {}, options)
    check_nodes(nodes, [row["node"] for row in result["nodes"]])
    rows, passed = listing.chosen([row for row in result["nodes"] if not nodes or row["node"] in nodes])
    missing: tuple[MissingRows, ...] = ()
    if options.output in TABLES and not listing.columns:
        figures, missing = with_cluster(options, _figures)
        table = [_cells(row, *figures.get(row["node"], (None, None))) for row in rows]
        wide = options.output is OutputFormat.WIDE
        shown = [row if wide else {name: row[name] for name in list(row)[:SHOWN]} for row in table]
        print_result(result | {"nodes": shown}, options.output)
    else:
        print_list(result | {"nodes": rows}, "nodes", options.output)
    if len(rows) < passed:
        typer.echo(f"stratamq: {len(rows)} of {passed} nodes shown: --limit or --all shows more", err=True)
    end_partial(missing)


async def _figures(
    cluster: "Cluster",
) -> "tuple[dict[str, tuple[StatsRow, StatsRow | None]], tuple[MissingRows, ...]]":
    """Return two samples of the metrics of each node."""
    import trio

    from admin.queries import ListQuery, walk

    first = await walk(cluster, "stats", ListQuery(limit=NODES_MAX))
    await trio.sleep(APART_S)
    second = await walk(cluster, "stats", ListQuery(limit=NODES_MAX))
    later = dict(second.rows)
    found = {node: (row, later.get(node)) for node, row in first.rows}
    return found, tuple(dict.fromkeys((*first.partial, *second.partial)))


SHOWN = 11  # columns of a normal table


def _cells(row: dict[str, Any], first: "StatsRow | None", second: "StatsRow | None") -> dict[str, object]:
    """Return the cells of a node; without metrics, only those of the router."""
    now = (second or first).at_ms if first is not None else None
    stats = second or first
    gauges = (stats.gauges or {}) if stats is not None else {}
    own = row.get("primaries")
    backups = (row.get("replicas") or 0) - (own or 0)
    started = stats.started_at_ms if stats is not None else None
    return {
        "node": row["node"],
        "tier": row.get("tier"),
        "state": row.get("state"),
        "version": stats.version if stats is not None else None,
        "uptime": cells.duration((now - started) / 1000) if now is not None and started is not None else None,
        "conns": stats.connections if stats is not None else row.get("connected"),
        "msg_in/s": rate_of(RECEIVED, first, second),
        "msg_out/s": rate_of(DELIVERED, first, second),
        "partitions": f"{own or 0}/{max(0, backups)}" if row.get("tier") == "storage" else None,
        "load": row.get("load"),
        "disk": _disk(stats),
        "term": gauges.get(TERM),
        "lag": _lag(gauges),
        "tls_expires": _expires(stats),
        "rss": cells.size(stats.rss_bytes) if stats is not None and stats.rss_bytes is not None else None,
        "fd": f"{stats.open_files}/{stats.open_files_max}" if stats is not None and stats.open_files else None,
        "zone": row.get("zone"),
        "address": row.get("address"),
    }


def _lag(gauges: dict[str, float]) -> object:
    """Return the number of uncommitted log entries, or of operations that the slowest copy lacks."""
    if RAFT_LAG in gauges:
        return gauges[RAFT_LAG]
    copies = [value for name, value in gauges.items() if name.startswith(COPY_LAG)]
    return max(copies) if copies else None


def _disk(stats: "StatsRow | None") -> object:
    if stats is None or stats.disk_free_bytes is None or not stats.disk_bytes:
        return None
    return f"{stats.disk_free_bytes / stats.disk_bytes:.0%} of {cells.size(stats.disk_bytes)} free"


def _expires(stats: "StatsRow | None") -> object:
    if stats is None or stats.tls_not_after_ms is None or stats.at_ms is None:
        return None
    return cells.age_of(stats.tls_not_after_ms / 1000, stats.at_ms / 1000)
