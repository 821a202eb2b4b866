"""``stratamq trace ...``: events of one client, topic, network or message on edges and storage nodes."""

import secrets
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratamq.cli import cells
from stratamq.cli.cluster_requests import end_partial, say_partial, with_cluster
from stratamq.cli.commands import asks, group
from stratamq.cli.durations import seconds_of
from stratamq.cli.field_view import api_path
from stratamq.cli.listing import add_list
from stratamq.cli.node_requests import Options, show_nodes
from stratamq.cli.output import OutputFormat, print_result, printable

if TYPE_CHECKING:
    from admin.queries import Cluster
    from admin.traces import NodeTraceEvent, TraceRead

__all__ = ["event_row", "line_of", "payload_bytes", "register"]

TABLES = (OutputFormat.TABLE, OutputFormat.WIDE)
EVERY_S = 0.5
SHOWN = ("at", "node", "stage", "client_id", "topic", "packet", "qos", "partition", "seq", "reason", "detail", "origin")
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Trace name from `trace start` or `trace list`.")]
NodeOption = Annotated[str, typer.Option("--node", help="Only this edge or storage node.")]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Only print the nodes' validation results.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    traces = group(app, "trace", "Traces of one client, topic, network or message through the nodes.")
    traces.command("start")(start)
    add_list(traces, "list", "trace")
    traces.command("tail")(tail)
    traces.command("export")(export)
    traces.command("stop")(stop)


@asks
def start(
    options: Options,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="client, topic, address or origin.")],
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Client ID with * and ?; topic filter; network; origin.")
    ] = "",
    for_s: Annotated[str, typer.Option("--for", help="Duration, as 10m; at most 1h.")] = "10m",
    events_max: Annotated[
        int,
        typer.Option(
            "--events", min=1, max=100_000, help="Event limit on each node; the trace stops there when it is reached."
        ),
    ] = 10_000,
    payload: Annotated[
        str, typer.Option("--payload", help="Recorded payload: none, or head:N for the first N bytes, up to 64.")
    ] = "none",
    name: Annotated[str, typer.Option("--name", help="Trace name, for tail and stop; default: generated.")] = "",
    node: NodeOption = "",
    dry_run: DryOption = False,
) -> None:
    """Start a trace on every edge and storage node; it expires automatically."""
    from conf.errors import ExitCode, UserError
    from wire.queries.traces import TraceRefused, judge_of

    seconds = int(seconds_of(for_s))
    if not 1 <= seconds <= 3_600:
        raise UserError(f"--for {for_s!r}: at most 1h", ExitCode.USAGE)
    try:
        judge_of(kind, pattern)
    except TraceRefused as refusal:
        raise UserError(str(refusal), ExitCode.USAGE) from None
    name = name or f"t-{secrets.token_hex(3)}"
    arguments: dict[str, object] = {"trace": name, "kind": kind, "pattern": pattern, "for_s": seconds, "node": node}
    arguments |= {"events_max": events_max, "payload_bytes": payload_bytes(payload), "dry_run": dry_run}
    show_nodes("trace start", arguments, options, about={"trace": name})


def payload_bytes(text: str) -> int:
    """Return the number of bytes of ``--payload``.

    Raises:
        UserError: The text is invalid.
    """
    from conf.errors import ExitCode, UserError
    from wire.messages.queries import TRACE_PAYLOAD_MAX

    if text == "none":
        return 0
    head, colon, number = text.partition(":")
    if head != "head" or (colon and not (number.isascii() and number.isdigit())):
        raise UserError(f"--payload {text!r} is invalid: use none or head:N", ExitCode.USAGE)
    count = int(number) if colon else TRACE_PAYLOAD_MAX
    if not 1 <= count <= TRACE_PAYLOAD_MAX:
        raise UserError(f"--payload {text!r} is out of range: use 1 to {TRACE_PAYLOAD_MAX} bytes", ExitCode.USAGE)
    return count


@asks
def stop(options: Options, name: NameArgument, node: NodeOption = "", dry_run: DryOption = False) -> None:
    """Stop a trace; its events stay readable until another trace replaces it."""
    show_nodes("trace stop", {"trace": name, "node": node, "dry_run": dry_run}, options, about={"trace": name})


@asks
def export(options: Options, name: NameArgument) -> None:
    """Print all events of a trace in causal order; -o jsonl for programs."""
    from admin.traces import clocks_of, in_order, read

    async def ask(cluster: "Cluster") -> "tuple[list[NodeTraceEvent], TraceRead]":
        found = await read(cluster, name, {})
        return in_order(found.rows, await clocks_of(cluster, [node for node, _ in found.rows])), found

    if options.show_api:
        typer.echo(api_path("GET", "traces", name))
        return
    events, found = with_cluster(options, ask)
    rows = [event_row(one) for one in events]
    if options.output in TABLES:
        shown = [{column.upper(): row[column] for column in SHOWN if column in row} for row in rows]
        if shown:
            print_result(shown, OutputFormat.TABLE)
        _say_clocks(events)
    elif rows or options.output not in (OutputFormat.JSONL, OutputFormat.CSV):
        print_result(rows, options.output)
    end_partial(found.missing)


@asks
def tail(
    options: Options,
    name: NameArgument,
    every_s: Annotated[float, typer.Option("--every", min=0.1, max=60, help="Poll interval in s.")] = EVERY_S,
    once: Annotated[bool, typer.Option("--once", help="Print the existing events and exit.")] = False,
) -> None:
    """Print new events of a trace until it has ended on every node, or until Ctrl-C."""
    from admin.trace_tail import follow
    from admin.traces import clocks_of, in_order, read

    async def print_all(cluster: "Cluster") -> None:
        said: set[str] = set()
        own: dict[str, None] = {}

        async def show(found: "TraceRead") -> None:
            clocks = await clocks_of(cluster, [node for node, _ in found.rows]) if found.rows else {}
            for one in in_order(found.rows, clocks, own):
                typer.echo(line_of(one) if options.output in TABLES else _json_line(one))
            sys.stdout.flush()
            new = [missing for missing in found.missing if missing.node not in said]
            say_partial(new)
            said.update(missing.node for missing in new)

        if once:
            await show(await read(cluster, name, {}))
        else:
            await follow(cluster, name, every_s, show)

    with_cluster(options, print_all)


def _json_line(one: "NodeTraceEvent") -> str:
    from stratamq.cli.output import render

    return render([event_row(one)], OutputFormat.JSONL)


def event_row(one: "NodeTraceEvent") -> dict[str, Any]:
    """Return an event for programs: its time on the local clock, and the error bound."""
    row = cells.fields_of(one.event) or {}
    at = {"at": cells.iso_us(one.at_us), "error_us": one.error_us, "node": one.node}
    return at | {name: value for name, value in row.items() if name not in ("at_us", "node", "carried")}


def line_of(one: "NodeTraceEvent", *, short: bool = False) -> str:
    """Return an event as one line; ``short`` omits topic and origin."""
    event = one.event
    at = cells.iso_us(one.at_us)
    parts = [at.partition("T")[2] if short else at, one.node, event.stage or "?"]
    for word, value in (
        ("", repr(event.client_id) if event.client_id else None),
        ("", repr(event.topic) if event.topic and not short else None),
        ("packet ", event.packet),
        ("QoS ", event.qos),
        ("partition ", event.partition),
        ("entry ", event.seq),
        ("because of ", event.reason),
        ("", event.detail),
        ("payload ", repr(event.payload) if event.payload else None),
        ("of ", event.origin if not short else None),
    ):
        if value is not None:
            parts.append(f"{word}{value}")
    return printable(" ".join(parts))


def _say_clocks(events: "list[NodeTraceEvent]") -> None:
    """Print the maximum clock error between nodes."""
    worst = max((one.error_us for one in events), default=0)
    if worst:
        typer.echo(f"stratamq: clocks of nodes may differ by up to {worst / 1000:.1f} ms", err=True)
