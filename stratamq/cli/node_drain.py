"""``stratamq node drain`` and ``undrain``: a forecast, the request, and the progress of an edge's drain.

An edge disconnects its clients at a rate. Ctrl-C cancels the drain and prints the number of remaining clients.
"""

import contextlib
import sys
import time
from typing import Annotated, Any

import typer

from stratamq.cli.api_requests import line_of_call
from stratamq.cli.commands import asks
from stratamq.cli.node_requests import Options, answer, show
from stratamq.cli.output import OutputFormat, print_result
from stratamq.cli.progress import progress_bar

__all__ = ["drain_node"]

POLL_S = 1.0  # edges report their number of clients every 2 s
RATE = r"of clients disconnected per second, as 200 or 200/s; 0: `edge.drain_rate`"
NodeArgument = Annotated[str, typer.Argument(metavar="NODE")]


@asks
def drain_node(
    options: Options,
    node: NodeArgument,
    rate: Annotated[str, typer.Option("--rate", help=f"An edge: number {RATE}.")] = "0",
    redirect: Annotated[
        bool, typer.Option("--redirect", help="An edge: redirect MQTT 5 clients to another edge.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="An edge: wait until no client is connected.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the effects.")] = False,
) -> None:
    """Evacuate a node: move partitions from a storage node, disconnect clients from an edge."""
    arguments: dict[str, object] = {"node": node}
    if options.show_api:
        if _rate(rate) or redirect:
            how = {"rate": _rate(rate), "redirect": redirect, "dry_run": dry_run}
            typer.echo(line_of_call("client drain", arguments | how))
        show("node drain", arguments | {"dry_run": dry_run}, options)
    if _entry(node, options).get("tier") != "edge":
        if dry_run:
            plan = answer("ring plan", {"drain": [node]}, options)
            _foretell_copies(node, plan)
            print_result(plan, options.output)
        else:
            show("node drain", arguments, options)
        return
    wanted = arguments | {"rate": _rate(rate), "redirect": redirect}
    forecast = _clients(wanted, options, dry_run=dry_run)
    _foretell(node, forecast)
    if dry_run:
        if options.output is not OutputFormat.TABLE:
            print_result({"node": node, **forecast, "dry_run": True}, options.output)
        return
    answer("node drain", arguments, options)
    left = _watch(node, wanted, forecast, options) if wait else forecast["clients"]
    if options.output is not OutputFormat.TABLE:
        print_result({"node": node, **forecast, "left": left}, options.output)
    elif not left:
        print(f"{node} is drained: stop it, or return it to service with `stratamq node undrain {node}`")


def _entry(node: str, options: Options) -> dict[str, Any]:
    """Return the node's entry of the list; {} if it is missing, because the drain request reports the error."""
    return next((entry for entry in answer("node list", {}, options)["nodes"] if entry["node"] == node), {})


def _rate(text: str) -> int:
    from conf.errors import ExitCode, UserError

    number = text.removesuffix("/s")
    if not number.isascii() or not number.isdigit() or int(number) > 100_000:
        raise UserError(
            f"--rate {text} is invalid: use a number of clients per second up to 100000, for example 200/s",
            ExitCode.USAGE,
        )
    return int(number)


def _clients(wanted: dict[str, object], options: Options, *, dry_run: bool) -> dict[str, int]:
    """Return the edge's counts: clients, wills that will be published, sessions that move, rate."""
    rows = answer("client drain", wanted | {"dry_run": dry_run}, options)["nodes"]
    told = [line.rpartition(" ") for line in rows[0]["lines"]]
    return {name: int(count) for name, _, count in told}


def _foretell(node: str, forecast: dict[str, int]) -> None:
    clients, rate = forecast["clients"], forecast["rate"]
    number = "1 client" if clients == 1 else f"{clients} clients"
    print(
        f"{node}: {number}, disconnected at {rate}/s ({clients / rate:.0f} s); {forecast['wills']} have a will"
        f" without delay, which is published; {forecast['sessions']} have a session, which stays available",
        file=sys.stderr,
    )


def _foretell_copies(node: str, plan: dict[str, Any]) -> None:
    """Print the number of partitions that lose a copy; an older router does not report it."""
    fewer = plan.get("partitions_under_replicated")
    if fewer:
        print(
            f"{node}: no other node can store its copy of {fewer} partitions, which keep one copy fewer:"
            " add a storage node first to avoid this",
            file=sys.stderr,
        )


def _watch(node: str, wanted: dict[str, object], forecast: dict[str, int], options: Options) -> int:
    """Show the progress until no client is left; Ctrl-C cancels the drain."""
    total = left = forecast["clients"]
    try:
        with progress_bar("clients") as bar:
            while left:
                time.sleep(POLL_S)
                entry = _entry(node, options)
                left = int(entry.get("connected") or 0)
                if not left or entry["state"] == "drained":  # gossip may be older than the last connections
                    left = _clients(wanted, options, dry_run=True)["clients"]
                total = max(total, left)
                bar(total - left, total, f"{forecast['rate']}/s")
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: the cancellation is already sent
            answer("node undrain", {"node": node}, options)
        print(
            f"stratamq: drain cancelled: {left} of {total} clients remain at {node}, which accepts clients again",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    return left
