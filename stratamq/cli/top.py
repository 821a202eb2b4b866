"""``stratamq top``: the nodes of a cluster, their load and its slowest clients, again and again.

On a terminal a screen that is drawn anew; without one, one line of JSON an interval. Every figure is of a look at that
moment: nothing is kept, and a node that does not answer stands there with the reason.
"""

import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratamq.cli import cells
from stratamq.cli.asking import Options
from stratamq.cli.output import OutputFormat, print_result, printable
from stratamq.cli.verbs import asks

if TYPE_CHECKING:
    from rich.console import RenderableType

    from admin.queries import Cluster

__all__ = ["register"]

SLOW_ROWS = 10
REDRAWS_S = 4


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("top")(top)


@asks
def top(
    options: Options,
    once: Annotated[bool, typer.Option("--once", help="One look, as a table.")] = False,
    every_s: Annotated[float, typer.Option("--every", min=0.5, max=60, help="s; between two looks.")] = 2.0,
) -> None:
    """Nodes, connections, sessions and slow clients, again and again; Ctrl-C ends it."""
    from stratamq.cli.cluster_questions import with_cluster

    if once:
        seen = with_cluster(options, _look)
        if options.output in (OutputFormat.TABLE, OutputFormat.WIDE):
            print_result(seen["nodes"], OutputFormat.TABLE)
            if seen["slow"]:
                typer.echo()
                print_result(seen["slow"], OutputFormat.TABLE)
        else:
            print_result(seen, options.output)
        return
    ended = threading.Event()

    def interrupted(*_: object) -> None:
        """The first Ctrl-C ends it behind the look that is under way, wherever that is; the second ends that too."""
        if ended.is_set():
            raise KeyboardInterrupt
        ended.set()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        if sys.stdout.isatty() and options.output in (OutputFormat.TABLE, OutputFormat.WIDE):
            _draw(options, every_s, ended)
        else:
            while not ended.is_set():
                began = time.monotonic()
                print_result([with_cluster(options, _look)], OutputFormat.JSONL)
                sys.stdout.flush()
                ended.wait(max(0.0, every_s - (time.monotonic() - began)))
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGINT, before)


def _draw(options: Options, every_s: float, ended: threading.Event) -> None:
    from rich.live import Live

    from stratamq.cli.cluster_questions import with_cluster

    with Live(screen=True, refresh_per_second=REDRAWS_S, auto_refresh=False) as live:
        while not ended.is_set():
            began = time.monotonic()
            live.update(_screen(with_cluster(options, _look)), refresh=True)
            ended.wait(max(0.0, every_s - (time.monotonic() - began)))


def _screen(seen: dict[str, Any]) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    from stratamq.cli.output import table_of

    head = f"{seen['cluster']}  {seen['clients']} clients  {seen['sessions']} sessions  epoch {seen['map_epoch']}"
    if seen["without_primary"]:
        head += f"  {seen['without_primary']} partitions WITHOUT PRIMARY"
    parts: list[RenderableType] = [
        Text(printable(f"{head}  {seen['at']}"), style="bold"),
        Text(""),
        table_of(seen["nodes"]),
    ]
    if seen["slow"]:
        parts += [Text(""), Text("slow clients", style="bold"), table_of(seen["slow"])]
    parts += [Text(""), Text("Ctrl-C ends it", style="dim")]
    return Group(*parts)


async def _look(cluster: "Cluster") -> dict[str, Any]:
    """Return one picture of the cluster: a row for each node of the map, and the slowest clients."""
    from admin.queries import Wanted, counted, walk

    clients, silent_edges = await counted(cluster, "clients")
    sessions, silent_storage = await counted(cluster, "sessions")
    slow = await walk(cluster, "slow", Wanted(limit=SLOW_ROWS, best="value"))
    silent = {missing.node: missing.why for missing in (*silent_edges, *silent_storage, *slow.partial)}
    nodes = []
    for name in sorted(cluster.map.nodes):
        entry = cluster.map.nodes[name]
        nodes.append(
            {
                "node": name,
                "tier": entry.tier,
                "state": silent.get(name, entry.admin_state or entry.state),
                "clients": clients.get(name),
                "sessions": sessions.get(name),
                "primaries": sum(placement.primary == name for placement in cluster.map.partitions),
                "shards": sum(shard.owner == name for shard in cluster.map.shards),
            }
        )
    worst = [{"node": node} | (cells.fields_of(row) or {}) for node, row in slow.rows]
    shown = ("client_id", "node", "by", "value", "unit")
    return {
        "at": cells.iso(time.time()),
        "cluster": cluster.map.cluster,
        "map_epoch": cluster.map.epoch,
        "clients": sum(clients.values()),
        "sessions": sum(sessions.values()),
        "without_primary": sum(not placement.primary for placement in cluster.map.partitions),
        "nodes": nodes,
        "slow": [{name: row.get(name) for name in shown} for row in worst if row.get("value")],
    }
