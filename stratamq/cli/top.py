"""``stratamq top``: load of a cluster's nodes and its slowest clients, refreshed periodically.

A terminal shows a screen; otherwise each interval prints one line of JSON. Rates compare the last two samples.
The row of a silent node shows the reason. During an election the last values stay, with a message.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratamq.cli import cells
from stratamq.cli.commands import asks
from stratamq.cli.node_requests import Options
from stratamq.cli.output import OutputFormat, print_result, printable
from stratamq.cli.rates import DELIVERED, RECEIVED, cpu_of, rate_of
from stratamq.cli.watching import is_away, say_away

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from admin.queries import Cluster, ListResult
    from admin.scatter_gather import MissingRows
    from conf.errors import UserError
    from wire.messages.node_rows import StatsRow

__all__ = ["register"]

SLOW_ROWS = 10
REDRAWS_S = 4
KEY_S = 0.1  # poll interval of keys
KEYS_MAX = 256  # read at once; an arrow key is three characters
TABLES = (OutputFormat.TABLE, OutputFormat.WIDE)
SPARE = ("tier", "shards", "primaries", "state")  # columns that a narrow screen omits, in this order
WIDE = 1_000  # characters; wider than any table of nodes
COUNTED = (
    "incarnation",
    "at_ms",
    "connections",
    "sessions",
    "rss_bytes",
    "cpu_s",
    "counters",
)  # columns of stats to query


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("top")(top)


@asks
def top(
    options: Options,
    once: Annotated[bool, typer.Option("--once", help="Print one table and exit.")] = False,
    every_s: Annotated[float, typer.Option("--every", min=0.5, max=60, help="Refresh interval in s.")] = 2.0,
) -> None:
    """Show nodes, clients, message rates and slow clients periodically; q or Ctrl-C quits."""
    sampler = _Sampler(options)
    if once:
        seen = sampler.take()
        if options.output in TABLES:
            print_result(_table(seen), OutputFormat.TABLE)
            if seen["slow"]:
                typer.echo()
                print_result(seen["slow"], OutputFormat.TABLE)
        else:
            print_result(seen, options.output)
        return
    ended = threading.Event()

    def interrupted(*_: object) -> None:
        """Quit after the current query at the first Ctrl-C, immediately at the second."""
        if ended.is_set():
            raise KeyboardInterrupt
        ended.set()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        if sys.stdout.isatty() and options.output in TABLES:
            _draw(sampler, every_s, ended)
        else:
            while not ended.is_set():
                began = time.monotonic()
                _print_line(sampler)
                ended.wait(max(0.0, every_s - (time.monotonic() - began)))
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGINT, before)


class _Sampler:
    """Samples of a cluster, each with rates since the previous one."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._before: Mapping[str, StatsRow] = {}
        self.last: dict[str, Any] | None = None

    def take(self) -> dict[str, Any]:
        """Return a new sample.

        Raises:
            UserError: No server responds.
        """
        from stratamq.cli.cluster_requests import with_cluster

        self.last, self._before = with_cluster(self._options, lambda cluster: _query(cluster, self._before))
        return self.last

    def is_transient(self, error: "UserError") -> bool:
        """Return whether to continue after an error: a sample exists, and the error may be temporary."""
        return self.last is not None and is_away(error)


def _print_line(sampler: _Sampler) -> None:
    from conf.errors import UserError

    try:
        print_result([sampler.take()], OutputFormat.JSONL)
    except UserError as error:
        if not sampler.is_transient(error):
            raise
        say_away(error)
    sys.stdout.flush()


def _draw(sampler: _Sampler, every_s: float, ended: threading.Event) -> None:
    from rich.live import Live

    from conf.errors import UserError

    sampler.take()  # an initial error is printed on the normal screen
    with _keys() as pressed, Live(screen=True, refresh_per_second=REDRAWS_S, auto_refresh=False) as live:
        warning = ""
        while not ended.is_set():
            began = time.monotonic()
            assert sampler.last is not None
            live.update(_screen(sampler.last, warning, live.console), refresh=True)
            while not ended.is_set() and (left := every_s - (time.monotonic() - began)) > 0:
                if "q" in pressed(min(left, KEY_S)).lower():
                    return
            if ended.is_set():
                return
            try:
                sampler.take()
                warning = ""
            except UserError as error:
                if not sampler.is_transient(error):
                    raise
                warning = error.message


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for keys and returns the pressed ones, without echo."""

    def wait(timeout_s: float) -> str:
        time.sleep(timeout_s)
        return ""

    def pressed(timeout_s: float) -> str:
        if not select.select([descriptor], [], [], timeout_s)[0]:
            return ""
        return os.read(descriptor, KEYS_MAX).decode("ascii", "ignore") or wait(timeout_s)

    if not sys.stdin.isatty():
        yield wait
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _table(seen: Mapping[str, Any]) -> list[dict[str, object]]:
    """Return the nodes as rows of a table."""
    shown: list[dict[str, object]] = []
    for node in seen["nodes"]:
        cores, rss = node["cpu_cores"], node["rss_bytes"]
        row = {
            "cpu" if name == "cpu_cores" else "rss" if name == "rss_bytes" else name: value
            for name, value in node.items()
        }
        row["cpu"] = None if cores is None else f"{cores:.0%}"
        row["rss"] = None if rss is None else cells.size(rss)
        shown.append(row)
    return shown


def _fitting(rows: list[dict[str, object]], console: "Console") -> list[dict[str, object]]:
    """Return rows with the columns that fit on the screen."""
    from rich.measure import Measurement

    from stratamq.cli.output import table_of

    options = console.options.update(width=WIDE)
    for spare in SPARE:
        if Measurement.get(console, options, table_of(rows)).maximum <= console.width:
            break
        rows = [{name: value for name, value in row.items() if name != spare} for row in rows]
    return rows


def _screen(seen: dict[str, Any], warning: str, console: "Console") -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    from stratamq.cli.output import table_of

    head = f"{seen['cluster']}  {seen['clients']} clients  {seen['sessions']} sessions  epoch {seen['map_epoch']}"
    if seen["without_primary"]:
        head += f"  {seen['without_primary']} partitions WITHOUT PRIMARY"
    parts: list[RenderableType] = [
        Text(printable(f"{head}  {seen['at']}"), style="bold"),
        *(Text(printable(f"values are not current: {line}"), style="bold") for line in warning.split("\n") if line),
        Text(""),
        table_of(_fitting(_table(seen), console)),
    ]
    if seen["slow"]:
        parts += [Text(""), Text("slow clients", style="bold"), table_of(seen["slow"])]
    parts += [Text(""), Text("q or Ctrl-C quits", style="dim")]
    return Group(*parts)


async def _query(
    cluster: "Cluster", before: "Mapping[str, StatsRow]"
) -> "tuple[dict[str, Any], Mapping[str, StatsRow]]":
    """Return the cluster's nodes and slowest clients, and the raw rows of the nodes."""
    import trio

    from admin.queries import EVERY_ROW, ListQuery, walk

    found: dict[str, ListResult] = {}

    async def ask(what: str, wanted: ListQuery) -> None:
        found[what] = await walk(cluster, what, wanted)

    async with trio.open_nursery() as nursery:  # concurrently, because a silent node delays each by a second
        nursery.start_soon(ask, "stats", ListQuery(limit=EVERY_ROW, columns=COUNTED))
        nursery.start_soon(ask, "slow", ListQuery(limit=SLOW_ROWS, best="value"))
    stats: dict[str, StatsRow] = dict(found["stats"].rows)
    silent = _silent((*found["stats"].partial, *found["slow"].partial))
    nodes = []
    for name in sorted(cluster.map.nodes):
        entry = cluster.map.nodes[name]
        first, now = before.get(name), stats.get(name)
        nodes.append(
            {
                "node": name,
                "tier": entry.tier,
                "state": silent.get(name, entry.admin_state or entry.state),
                "clients": now.connections if now is not None else None,
                "sessions": now.sessions if now is not None else None,
                "msg_in/s": rate_of(RECEIVED, first, now),
                "msg_out/s": rate_of(DELIVERED, first, now),
                "cpu_cores": cpu_of(first, now),
                "rss_bytes": now.rss_bytes if now is not None else None,
                "primaries": sum(placement.primary == name for placement in cluster.map.partitions),
                "shards": sum(shard.owner == name for shard in cluster.map.shards),
            }
        )
    worst = [{"node": node} | (cells.fields_of(row) or {}) for node, row in found["slow"].rows]
    shown = ("client_id", "node", "by", "value", "unit")
    picture = {
        "at": cells.iso(time.time()),
        "cluster": cluster.map.cluster,
        "map_epoch": cluster.map.epoch,
        "clients": sum(one.connections or 0 for one in stats.values()),
        "sessions": sum(one.sessions or 0 for one in stats.values()),
        "without_primary": sum(not placement.primary for placement in cluster.map.partitions),
        "nodes": nodes,
        "slow": [{name: row.get(name) for name in shown} for row in worst if row.get("value")],
    }
    return picture, stats


def _silent(missing: "tuple[MissingRows, ...]") -> dict[str, str]:
    return {one.node: one.why for one in missing}
