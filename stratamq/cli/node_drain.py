"""``stratamq node drain`` and ``undrain``: a forecast, the order, and for an edge how far it has come.

An edge's clients are let go at a rate; Ctrl-C takes the order back at once and says how many have stayed.
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

LOOK_S = 1.0  # edges tell how many clients they have each 2 s
RATE = r"of clients let go a second, as 200 or 200/s; 0: as `edge.drain_rate` says"
NodeArgument = Annotated[str, typer.Argument(metavar="NODE")]


@asks
def drain_node(
    options: Options,
    node: NodeArgument,
    rate: Annotated[str, typer.Option("--rate", help=f"An edge: number {RATE}.")] = "0",
    redirect: Annotated[bool, typer.Option("--redirect", help="An edge: tell MQTT 5 clients another edge.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="An edge: wait until it is empty.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False,
) -> None:
    """Move everything away from a node: partitions from a storage node, clients from an edge."""
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
        print(f"{node} is drained: it may be stopped, or `stratamq node undrain {node}` lets clients in again")


def _entry(node: str, options: Options) -> dict[str, Any]:
    """Return the node as the list has it; none that is not there: the order itself says what is wrong."""
    return next((entry for entry in answer("node list", {}, options)["nodes"] if entry["node"] == node), {})


def _rate(text: str) -> int:
    from conf.errors import ExitCode, UserError

    number = text.removesuffix("/s")
    if not number.isascii() or not number.isdigit() or int(number) > 100_000:
        raise UserError(f"--rate {text}: a number of clients a second, such as 200/s, at most 100000", ExitCode.USAGE)
    return int(number)


def _clients(wanted: dict[str, object], options: Options, *, dry_run: bool) -> dict[str, int]:
    """Return what the edge says: clients, wills that fire, sessions that go on elsewhere, rate."""
    rows = answer("client drain", wanted | {"dry_run": dry_run}, options)["nodes"]
    told = [line.rpartition(" ") for line in rows[0]["lines"]]
    return {name: int(count) for name, _, count in told}


def _foretell(node: str, forecast: dict[str, int]) -> None:
    clients, rate = forecast["clients"], forecast["rate"]
    number = "1 client" if clients == 1 else f"{clients} clients"
    print(
        f"{node}: {number}, let go at {rate}/s ({clients / rate:.0f} s); {forecast['wills']} have a will"
        f" without delay, which fires; {forecast['sessions']} have a session, which goes on elsewhere",
        file=sys.stderr,
    )


def _foretell_copies(node: str, plan: dict[str, Any]) -> None:
    """Say of how many partitions nobody takes the copy that the node has; an older router does not tell it."""
    fewer = plan.get("partitions_under_replicated")
    if fewer:
        print(
            f"{node}: no other node takes its copy of {fewer} partitions, each of which keeps one copy fewer:"
            " add a storage node first, or accept that",
            file=sys.stderr,
        )


def _watch(node: str, wanted: dict[str, object], forecast: dict[str, int], options: Options) -> int:
    """Show how far the drain is until nobody is left; Ctrl-C takes it back."""
    total = left = forecast["clients"]
    try:
        with progress_bar("clients") as bar:
            while left:
                time.sleep(LOOK_S)
                entry = _entry(node, options)
                left = int(entry.get("connected") or 0)
                if not left or entry["state"] == "drained":  # gossip may be of before the last clients came
                    left = _clients(wanted, options, dry_run=True)["clients"]
                total = max(total, left)
                bar(total - left, total, f"{forecast['rate']}/s")
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):  # a second one finds the order taken back, or on its way
            answer("node undrain", {"node": node}, options)
        print(
            f"stratamq: stopped: {left} of {total} clients have stayed at {node}, which takes clients again",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    return left
