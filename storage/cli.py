"""``stratamq store``: export, import, verify and look at stores.

Decides what is asked of whom and how it is told; the work is in ``export_run``, ``importing`` and ``scrub``.
"""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["app"]

app = typer.Typer(
    name="store",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Export, import and verify stores.",
)

RouterOption = Annotated[
    str, typer.Option("--router", help="host:port of a router; default: STRATAMQ_ROUTER, or --data.")
]
DataOption = Annotated[Path, typer.Option("--data", help="Folder of a running `stratamq up`; also its certificates.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DATA = Path("data")


@app.command()
def export(
    output: Annotated[Path, typer.Option("--output", help="Folder of the manifest; its runs go below it.")],
    since: Annotated[Path | None, typer.Option("--since", help="Manifest of --output: export what changed.")] = None,
    store: Annotated[Path | None, typer.Option("--store", help="A stopped node's store instead of a cluster.")] = None,
    replicas: Annotated[bool, typer.Option("--replicas", help="Every copy in sync, for the audit.")] = False,
    router: RouterOption = "",
    data: DataOption = DATA,
    as_json: JsonOption = False,
) -> None:
    """Write SSTables of a running cluster, or of a stopped node's store, and their manifest."""
    from storage.export_run import export_cluster, export_store

    began = time.monotonic()
    now_ms = time.time_ns() // 1_000_000
    if store is not None:
        result = export_store(store_path(store), output, since, now_ms, _progress)
    else:
        result = export_cluster(router, data, output, since, now_ms, _progress, replicas=replicas)
    seconds = time.monotonic() - began
    _print(result | {"seconds": round(seconds, 2)}, as_json)


@app.command()
def verify(
    store: Annotated[Path, typer.Argument(help="A stopped node's store: DATA/<node>/store, or that node's folder.")],
    as_json: JsonOption = False,
) -> None:
    """Check every record of a stopped node's store; exit code 1 when something is wrong."""
    from conf.errors import ExitCode, UserError
    from storage.scrub import verify as scrub
    from storage.store_errors import StoreError

    try:
        report = scrub(store_path(store))
    except StoreError as error:
        raise UserError(str(error)) from None
    for finding in report.findings:
        _progress(f"stratamq store: {finding}")
    if report.findings_dropped:
        _progress(f"stratamq store: and {report.findings_dropped} more findings")
    _print({"store": str(store), "rows": report.rows, "clean": report.clean, "findings": len(report.findings)}, as_json)
    if not report.clean:
        raise typer.Exit(ExitCode.FAILED)


def store_path(path: Path) -> Path:
    """Return the store's file, given it or its node's folder."""
    return path / "store" if path.is_dir() else path


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result))
        return
    for name, value in result.items():
        typer.echo(f"{name}: {value}")
