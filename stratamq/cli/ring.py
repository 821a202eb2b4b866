"""``stratamq ring ...``: placement of partitions and route shards, and rebalancing.

A rebalance is a job in the routers' log; this command starts and watches it. Ctrl-C or kill -9 ends only the watching:
``ring status`` shows the progress, ``ring abort`` stops the job. Errors are one line.
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
LOST_S = 30.0  # without a reply of any router, before watching fails
PARTIAL = 3
COPIES_MAX = 512  # partitions of one request; the HTTP service limits requests to 16 KiB

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only print the changes.")]
DetachOption = Annotated[bool, typer.Option("--detach", help="Start it without watching.")]
ThrottleOption = Annotated[int, typer.Option("--throttle", min=0, help="Limit of copied data in MiB/s; 0: unlimited.")]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    ring = group(app, "ring", "Placement of partitions and route shards.")
    verb(ring, "ring export", "Export the cluster map, for programs (-o json).")
    verb(ring, "ring status", "Show the running or the last rebalance.")
    verb(ring, "ring pause", "Pause the rebalance: start no further moves.", changes=True)
    verb(ring, "ring resume", "Resume a paused rebalance.", changes=True)
    verb(
        ring,
        "ring abort",
        "Abort the rebalance: unfinished moves are reverted, or completed if nearly done.",
        changes=True,
    )
    verb_about(ring, "ring explain", "name", "Explain the placement of a client identifier or a topic.")
    verb_about(ring, "ring remove", "node", "Remove a drained and stopped node from the map.", loses=PLACE_IN_THE_MAP)
    verb_about(
        ring,
        "ring undelegate",
        "prefix",
        "Remove a delegation.",
        loses="its depth and pin are removed, and routes below it move to the routers that the ring selects",
    )
    ring.command("show")(show_ring)
    for command in (plan, rebalance, verify, add, drain, delegate, recover):
        ring.command(command.__name__)(command)


@asks
def plan(
    options: Options,
    add: Annotated[list[str] | None, typer.Option("--add", help="Simulate adding this node.")] = None,
    drain: Annotated[list[str] | None, typer.Option("--drain", help="Simulate draining this node.")] = None,
) -> None:
    """Show the moves of a rebalance without starting it."""
    show("ring plan", {"add": add or [], "drain": drain or []}, options)


@asks
def rebalance(
    options: Options,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="Start only if this output of `ring plan -o json` is current.")
    ] = None,
    throttle: ThrottleOption = 0,
    dry_run: DryRunOption = False,
    detach: DetachOption = False,
) -> None:
    """Move partitions and shards to their owners in the ring, and watch the progress."""
    arguments: dict[str, object] = {"throttle_bytes_s": throttle << 20}
    if plan is not None:
        arguments["map_epoch"] = _epoch_of(plan)
    _rebalance(arguments, dry_run=dry_run, detach=detach, options=options)


@asks
def verify(options: Options) -> None:
    """Compare the last plan with its result; exit code 1 if a move is missing."""
    reply = _request("ring verify", {}, options)
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
    """Assign a joined node its share of partitions and shards."""
    _for_node(options, "add", node, throttle, dry_run, detach)


@asks
def drain(
    options: Options,
    node: NodeArgument,
    throttle: ThrottleOption = 0,
    dry_run: DryRunOption = False,
    detach: DetachOption = False,
) -> None:
    """Move all partitions and shards from a node."""
    _for_node(options, "drain", node, throttle, dry_run, detach)


@asks
def delegate(
    options: Options,
    prefix: Annotated[str, typer.Argument(help="Whole topic levels without wildcards, as plant-7/line-1.")],
    depth: Annotated[int, typer.Option(min=1, max=32, help="Number of levels below the prefix in the route key.")],
    pin: Annotated[str, typer.Option(help="Router that owns the subtree; default: selected by the ring.")] = "",
    dry_run: DryRunOption = False,
) -> None:
    """Delegate a topic prefix, so that its subtree has its own route keys and owner."""
    show("ring delegate", {"prefix": prefix, "depth": depth, "pin": pin, "dry_run": dry_run}, options)


@asks
def recover(
    options: Options,
    partition: Annotated[str, typer.Argument(help="Partition without a primary; all: every one.")],
    accept_loss: Annotated[
        str, typer.Option("--accept-loss", metavar="NODE", help="Start from this node's copy; the rest is lost.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Confirm.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Show the copies of partitions that lost all complete copies; with --accept-loss and --yes, serve one.

    Such a partition waits for a node with a complete copy: start that node if possible. Data that the accepted copy
    lacks is lost permanently: sessions, queued and retained messages, acknowledged or not. Repeated messages of
    publishers may be delivered twice.
    """
    from conf.errors import ExitCode, UserError

    lost = _request("ring lost", {"partition": partition}, options)
    if accept_loss:
        arguments: dict[str, object] = {"partition": partition, "node": accept_loss, "dry_run": dry_run or not yes}
        result = _request("ring recover", arguments, options)
        if yes or dry_run:
            print_result(result, options.output)
            return
    numbers = [row["partition"] for row in lost["partitions"]]
    _show_copies(lost, numbers, options)
    if accept_loss:
        raise UserError(
            f"`ring recover {partition} --accept-loss {accept_loss}` loses all data that {accept_loss} lacks, "
            "permanently; repeat the command with --yes",
            ExitCode.USAGE,
        )
    if numbers:
        typer.echo(
            "Nothing was changed. Start a node with a complete copy; if none is left, "
            f"`stratamq ring recover {partition} --accept-loss NODE` serves the copy of NODE and loses the rest.",
            err=True,
        )


def _show_copies(lost: dict[str, Any], numbers: list[int], options: Options) -> None:
    """Print the storage nodes' copies of partitions without a primary."""
    from conf.errors import UserError

    for row in lost["partitions"]:
        row["whole_copies"] = ", ".join(f"{node} ({state})" for node, state in row["whole_copies"].items()) or "none"
    for node, address in lost.pop("storages").items():
        try:
            replies = _copies(node, address, numbers, options)
        except UserError:
            replies = {}
        for row in lost["partitions"]:
            row[node] = replies.get(str(row["partition"]), "does not respond")
    print_result(lost, options.output)


def _copies(node: str, address: str, numbers: list[int], options: Options) -> dict[str, Any]:
    """Return a storage node's copies of partitions; {} if it refuses."""
    replies: dict[str, Any] = {}
    for start in range(0, len(numbers), COPIES_MAX):
        arguments: dict[str, object] = {"partitions": numbers[start : start + COPIES_MAX]}
        if options.api is not None:
            arguments["node"] = node
        reply = ask("store copies", arguments, replace(options, router=address), follow_leader=False)
        replies |= reply.result if reply.ok else {}
    return replies


def _for_node(options: Options, word: str, node: str, throttle: int, dry_run: bool, detach: bool) -> None:
    if dry_run:
        show("ring plan", {word: [node]}, options)
        return
    _request(f"ring {word}", {"node": node}, options)
    arguments: dict[str, object] = {"throttle_bytes_s": throttle << 20}
    _rebalance(arguments, dry_run=False, detach=detach, options=options)


def _rebalance(arguments: dict[str, object], *, dry_run: bool, detach: bool, options: Options) -> None:
    if dry_run:
        show("ring plan", {}, options)
        return
    started = _request("ring rebalance", arguments, options)
    if started.get("rebalance") is None or detach:
        print_result(started, options.output)
        return
    final = _watch(options)
    print_result(final, options.output)
    if final["phase"] != "done":
        raise typer.Exit(PARTIAL if final["phase"] in ("aborted", "paused") else 1)


def _request(name: str, arguments: dict[str, object], options: Options, *, lost_s: float = 0.0) -> dict[str, Any]:
    from conf.errors import ExitCode, UserError

    reply = ask(name, arguments, options, lost_s=lost_s)
    if not reply.ok:
        raise UserError(reply.error or f"{name} failed", reply.exit_code or ExitCode.FAILED)
    return dict(reply.result)


def _watch(options: Options) -> dict[str, Any]:
    """Watch a rebalance until it ends; leader changes are waited for."""
    with progress_bar("moves") as show_done:
        while True:
            status = _request("ring status", {}, options, lost_s=LOST_S)
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
