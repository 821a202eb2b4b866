"""``stratamq check`` and ``stratamq record``: histories on the command line.

Exit codes of check: 0 without findings, 1 with findings or if the run is incomplete, 2 if the file is not a history.
Exit codes of record: 0, or 2 for an invalid option; check finds the faults of the broker.
"""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from stratamq.history.check import check_history
from stratamq.history.history import HistoryError
from stratamq.history.report import as_text, to_builtins
from wire.links.fast_path_run import run_plainly

__all__ = ["app", "check_command", "record_command"]

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)


class VerdictFormat(enum.StrEnum):
    """Form of the verdict on standard output."""

    TEXT = "text"
    JSON = "json"


@app.command("check")
def check_command(
    history: Annotated[Path, typer.Argument(help="History written by stratamq record.", metavar="HISTORY.jsonl")],
    output: Annotated[VerdictFormat, typer.Option("-o", "--output", help="text or json.")] = VerdictFormat.TEXT,
    proofs: Annotated[int, typer.Option(min=0, help="Findings shown per checker, in text.")] = 5,
) -> None:
    """Check a recorded history against the guarantees."""
    try:
        verdict = check_history(history)
    except (HistoryError, OSError) as error:
        typer.echo(f"{history}: {error}", err=True)
        raise typer.Exit(2) from error
    if output is VerdictFormat.JSON:
        sys.stdout.write(msgspec.json.encode(to_builtins(verdict)).decode() + "\n")
    else:
        typer.echo(as_text(verdict, proofs))
    raise typer.Exit(0 if verdict.clean else 1)


@app.command("record")
def record_command(
    broker: Annotated[list[str], typer.Option(help="HOST:PORT of plain MQTT; repeat for a cluster.")],
    output: Annotated[Path, typer.Option(help="File to write the history to.")],
    workload: Annotated[str, typer.Option(help="queue, routes, takeover, retained, wills, shared or rebalance.")] = (
        "queue"
    ),
    seconds: Annotated[float, typer.Option(min=0.1, max=86_400.0, help="Time of work before the quiet phase.")] = 10.0,
    seed: Annotated[
        int, typer.Option(help="Random seed of the clients' operations; response times are not determined by it.")
    ] = 1,
    clients: Annotated[int, typer.Option(min=0, max=2_000, help="Number of clients; 0: the workload's default.")] = 0,
    drain: Annotated[float, typer.Option(min=0.0, max=600.0, help="Longest quiet phase, in seconds.")] = 20.0,
    protocol: Annotated[int, typer.Option(help="4 for MQTT 3.1.1, 5 for 5.0, 0 for clients of both.")] = 0,
    rate: Annotated[float, typer.Option(min=0.1, max=10_000.0, help="Operations per second and client.")] = 20.0,
) -> None:
    """Run a workload against a broker and record its clients' histories."""
    from stratamq.history.recorder import RecordSettings, parse_address, record
    from stratamq.history.workloads import WORKLOADS

    if workload not in WORKLOADS:
        typer.echo(f"unknown workload {workload!r}: use one of {', '.join(WORKLOADS)}", err=True)
        raise typer.Exit(2)
    if protocol not in (0, 4, 5):
        typer.echo(f"protocol {protocol} is invalid: use 0, 4 or 5", err=True)
        raise typer.Exit(2)
    try:
        settings = RecordSettings(
            brokers=tuple(parse_address(address) for address in broker),
            workload=workload,
            seconds=seconds,
            seed=seed,
            clients=clients,
            drain_s=drain,
            operations_per_s=rate,
            protocol_version=protocol,
        )
        with output.open("wb") as sink:
            summary = run_plainly(record, settings, sink)
    except (ValueError, OSError) as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(f"{output}: {summary}")
