"""``stratamq ring ...``: where everything lives, and moving it.

A rebalance is a job in the routers' log: this command starts it and watches. Ending the command, by Ctrl-C or kill -9,
ends the watching and nothing else; ``ring status`` goes on with it, ``ring abort`` stops it. Refusals are one line.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from stratamq.cli.cluster import PLACE_IN_THE_MAP
from stratamq.cli.commands import asks, group, verb, verb_about
from stratamq.cli.node_requests import Options, ask, show
from stratamq.cli.output import print_result
from stratamq.cli.progress import progress_bar
from stratamq.cli.ring_list import show_ring

__all__ = ["register"]

POLL_S = 0.3
LOST_S = 30.0  # without an answer of any router before watching is given up
PARTIAL = 3
COPIES_MAX = 512  # partitions of one question: a request of the HTTP service has 16 KiB

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
DetachOption = Annotated[bool, typer.Option("--detach", help="Start, and do not watch.")]
ThrottleOption = Annotated[int, typer.Option("--throttle", min=0, help="MiB/s of copied data; 0: as fast as it goes.")]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    ring = group(app, "ring", "Where everything lives, and why.")
    verb(ring, "ring export", "The whole map, for programs (-o json).")
    verb(ring, "ring status", "The rebalance that runs, or the last one.")
    verb(ring, "ring pause", "Begin no further move.", changes=True)
    verb(ring, "ring resume", "Go on after a pause.", changes=True)
    verb(ring, "ring abort", "Stop: what is half-way goes back, or on if that is nearer.", changes=True)
    verb_about(ring, "ring explain", "name", "Where a client identifier or a topic lives, and why.")
    verb_about(ring, "ring remove", "node", "Forget a node that was drained and stopped.", loses=PLACE_IN_THE_MAP)
    verb_about(
        ring,
        "ring undelegate",
        "prefix",
        "Take a delegation back.",
        loses="its depth and its pin are forgotten, and routes below it move to the routers that the ring names",
    )
    ring.command("show")(show_ring)
    for command in (plan, rebalance, verify, add, drain, delegate, recover):
        ring.command(command.__name__)(command)


@asks
def plan(
    options: Options,
    add: Annotated[list[str] | None, typer.Option("--add", help="As if this node took its share again.")] = None,
    drain: Annotated[list[str] | None, typer.Option("--drain", help="As if this node were emptied.")] = None,
) -> None:
    """Show what a rebalance would move, without doing anything."""
    show("ring plan", {"add": add or [], "drain": drain or []}, options)


@asks
def rebalance(
    options: Options,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="Output of `ring plan -o json`: only if still true.")
    ] = None,
    throttle: ThrottleOption = 0,
    dry_run: DryRunOption = False,
    detach: DetachOption = False,
) -> None:
    """Move partitions and shards to where the ring wants them, and watch it."""
    arguments: dict[str, object] = {"throttle_bytes_s": throttle << 20}
    if plan is not None:
        arguments["map_epoch"] = _epoch_of(plan)
    _rebalance(arguments, dry_run=dry_run, detach=detach, options=options)


@asks
def verify(options: Options) -> None:
    """Compare the last plan with what was done; exit code 1 if something is missing."""
    reply = _asked("ring verify", {}, options)
    print_result(reply, options.output)
    if not reply["ok"]:
        raise typer.Exit(1)


@asks
def add(
    options: Options,
    node: NodeArgument,
    throttle: ThrottleOption = 0,
    dry_run: DryRunOption = False,
    detach: DetachOption = False,
) -> None:
    """Give a node that has joined its share."""
    _for_node(options, "add", node, throttle, dry_run, detach)


@asks
def drain(
    options: Options,
    node: NodeArgument,
    throttle: ThrottleOption = 0,
    dry_run: DryRunOption = False,
    detach: DetachOption = False,
) -> None:
    """Move everything away from a node."""
    _for_node(options, "drain", node, throttle, dry_run, detach)


@asks
def delegate(
    options: Options,
    prefix: Annotated[str, typer.Argument(help="Whole levels without wildcard, as in plant-7/line-1.")],
    depth: Annotated[int, typer.Option(min=1, max=32, help="Levels of the route key below this prefix.")],
    pin: Annotated[str, typer.Option(help="Router that owns the subtree; default: the ring decides.")] = "",
    dry_run: DryRunOption = False,
) -> None:
    """Give a subtree of the topic hierarchy a jurisdiction of its own."""
    show("ring delegate", {"prefix": prefix, "depth": depth, "pin": pin, "dry_run": dry_run}, options)


@asks
def recover(
    options: Options,
    partition: Annotated[str, typer.Argument(help="A partition without a primary, or all of them: all.")],
    accept_loss: Annotated[
        str, typer.Option("--accept-loss", metavar="NODE", help="Begin with what this node has; the rest is lost.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Show what is left of partitions whose whole copies are gone; with --accept-loss and --yes, serve that.

    Such a partition waits for a node with a whole copy: start that one if there is any way to. What the accepted copy
    lacks (sessions, queued and retained messages, acknowledged or not) is lost for good, and publishers' repeats from
    before may come twice.
    """
    from conf.errors import ExitCode, UserError

    lost = _asked("ring lost", {"partition": partition}, options)
    if accept_loss:
        arguments: dict[str, object] = {"partition": partition, "node": accept_loss, "dry_run": dry_run or not yes}
        result = _asked("ring recover", arguments, options)
        if yes or dry_run:
            print_result(result, options.output)
            return
    numbers = [row["partition"] for row in lost["partitions"]]
    _show_what_is_left(lost, numbers, options)
    if accept_loss:
        raise UserError(
            f"what {accept_loss} lacks of this is lost for good by `ring recover {partition} --accept-loss "
            f"{accept_loss}`: say --yes",
            ExitCode.USAGE,
        )
    if numbers:
        typer.echo(
            "Nothing was changed. Start a node with a whole copy; if none is left, "
            f"`stratamq ring recover {partition} --accept-loss NODE` serves what NODE has and loses the rest.",
            err=True,
        )


def _show_what_is_left(lost: dict[str, Any], numbers: list[int], options: Options) -> None:
    """Print what storage nodes have of partitions without a primary."""
    from conf.errors import UserError

    for row in lost["partitions"]:
        row["whole_copies"] = ", ".join(f"{node} ({state})" for node, state in row["whole_copies"].items()) or "none"
    for node, address in lost.pop("storages").items():
        try:
            said = _copies(node, address, numbers, options)
        except UserError:
            said = {}
        for row in lost["partitions"]:
            row[node] = said.get(str(row["partition"]), "does not answer")
    print_result(lost, options.output)


def _copies(node: str, address: str, numbers: list[int], options: Options) -> dict[str, Any]:
    """Return a storage node's copies of partitions; {} where it refuses."""
    said: dict[str, Any] = {}
    for start in range(0, len(numbers), COPIES_MAX):
        asked: dict[str, object] = {"partitions": numbers[start : start + COPIES_MAX]}
        if options.api is not None:
            asked["node"] = node
        reply = ask("store copies", asked, replace(options, router=address), follow_leader=False)
        said |= reply.result if reply.ok else {}
    return said


def _for_node(options: Options, word: str, node: str, throttle: int, dry_run: bool, detach: bool) -> None:
    if dry_run:
        show("ring plan", {word: [node]}, options)
        return
    _asked(f"ring {word}", {"node": node}, options)
    arguments: dict[str, object] = {"throttle_bytes_s": throttle << 20}
    _rebalance(arguments, dry_run=False, detach=detach, options=options)


def _rebalance(arguments: dict[str, object], *, dry_run: bool, detach: bool, options: Options) -> None:
    if dry_run:
        show("ring plan", {}, options)
        return
    started = _asked("ring rebalance", arguments, options)
    if started.get("rebalance") is None or detach:
        print_result(started, options.output)
        return
    final = _watch(options)
    print_result(final, options.output)
    if final["phase"] != "done":
        raise typer.Exit(PARTIAL if final["phase"] in ("aborted", "paused") else 1)


def _asked(name: str, arguments: dict[str, object], options: Options, *, lost_s: float = 0.0) -> dict[str, Any]:
    from conf.errors import ExitCode, UserError

    reply = ask(name, arguments, options, lost_s=lost_s)
    if not reply.ok:
        raise UserError(reply.error or f"{name} failed", reply.exit_code or ExitCode.FAILED)
    return dict(reply.result)


def _watch(options: Options) -> dict[str, Any]:
    """Follow a rebalance to its end; a change of the leader is only waited for."""
    with progress_bar("moves") as show_done:
        while True:
            status = _asked("ring status", {}, options, lost_s=LOST_S)
            show_done(status["done"], max(status["total"], 1))
            if status["phase"] not in ("running", "aborting"):
                return status
            time.sleep(POLL_S)


def _epoch_of(file: Path) -> int:
    import json

    from conf.errors import ExitCode, UserError

    try:
        return int(json.loads(file.read_text())["map_epoch"])
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}", ExitCode.USAGE) from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{file} is not the output of `stratamq ring plan -o json`", ExitCode.USAGE) from None
