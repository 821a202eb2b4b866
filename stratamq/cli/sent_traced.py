"""``stratamq msg send --trace``: publishes a message and traces it until it is delivered."""

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from stratamq.cli.api_requests import line_of_call
from stratamq.cli.cluster_requests import end_partial, with_cluster
from stratamq.cli.field_view import api_path
from stratamq.cli.node_requests import Options, answer, ask, show_nodes
from stratamq.cli.output import OutputFormat, print_result
from stratamq.cli.trace import event_row, line_of

if TYPE_CHECKING:
    from admin.queries import Cluster
    from admin.traces import NodeTraceEvent, TraceRead

__all__ = ["branches", "send_traced"]

TRACE_S = 60
LOOK_S = 0.3
LOOKS_MAX = 20
QUIET = 3  # queries without new events, before reading ends
TABLES = (OutputFormat.TABLE, OutputFormat.WIDE)


def send_traced(arguments: dict[str, object], topic: str, options: Options) -> None:
    """Publish a message and print its path as a tree; late acknowledgements are not waited for."""
    name = f"send-{secrets.token_hex(4)}"
    begun = {"trace": name, "kind": "topic", "pattern": topic, "for_s": TRACE_S}
    if options.show_api:
        _show_calls(name, begun, arguments)
        return
    answer("trace start", begun, options)
    try:
        if options.output in TABLES:
            show_nodes("msg send", arguments, options)
        else:
            answer("msg send", arguments, options)
        events, found = with_cluster(options, lambda cluster: _way(cluster, name))
    finally:
        ask("trace stop", {"trace": name}, options)
    _print(events, options)
    end_partial(found.missing)


def _show_calls(name: str, begun: dict[str, object], arguments: dict[str, object]) -> None:
    """Print the four requests of this command."""
    typer.echo(line_of_call("trace start", begun))
    typer.echo(line_of_call("msg send", arguments))
    typer.echo(api_path("GET", "traces", name))
    typer.echo(line_of_call("trace stop", {"trace": name}))


async def _way(cluster: "Cluster", name: str) -> "tuple[list[NodeTraceEvent], TraceRead]":
    """Read a trace until no new events arrive."""
    import trio

    from admin.traces import clocks_of, in_order, read, sent_here

    found = await read(cluster, name, {})
    quiet = 0
    for _ in range(LOOKS_MAX):
        await trio.sleep(LOOK_S)
        more = await read(cluster, name, {})
        quiet = quiet + 1 if len(more.rows) == len(found.rows) else 0
        found = more
        if quiet == QUIET:
            break
    clocks = await clocks_of(cluster, [node for node, _ in found.rows])
    return sent_here(in_order(found.rows, clocks)), found


def _print(events: "list[NodeTraceEvent]", options: Options) -> None:
    from admin.traces import way_of

    if options.output not in TABLES:
        print_result([event_row(one) for one in events], options.output)
        return
    origin = events[0].event.origin if events else "no events were recorded"
    typer.echo(f"\n{origin}")
    way = list(way_of(events))
    for branch, (_, one) in zip(branches([depth for depth, _ in way]), way, strict=True):
        typer.echo(branch + line_of(one, short=True))


def branches(depths: Sequence[int]) -> list[str]:
    """Return the prefix of each line of a tree, by its depth."""
    drawn = []
    more: set[int] = set()  # depths with a later line below the same parent
    for depth in reversed(depths):
        more = {other for other in more if other <= depth}
        above = "".join("│  " if other in more else "   " for other in range(depth))
        drawn.append(above + ("├─ " if depth in more else "└─ "))
        more.add(depth)
    return drawn[::-1]
