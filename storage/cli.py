"""``stratamq store``: export, import, verify and inspect stores.

This module parses arguments and prints results; ``export_run``, ``importing`` and ``scrub`` do the work.
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
    output: Annotated[Path, typer.Option("--output", help="Folder for the manifest and its runs.")],
    since: Annotated[
        Path | None, typer.Option("--since", help="Earlier manifest in --output: export changes only.")
    ] = None,
    store: Annotated[Path | None, typer.Option("--store", help="A stopped node's store instead of a cluster.")] = None,
    replicas: Annotated[bool, typer.Option("--replicas", help="Every copy in sync, for the audit.")] = False,
    router: RouterOption = "",
    data: DataOption = DATA,
    as_json: JsonOption = False,
) -> None:
    """Write SSTables of a running cluster, or of a stopped node's store, and their manifest."""
    from storage.export.export_run import export_cluster, export_store

    began = time.monotonic()
    now_ms = time.time_ns() // 1_000_000
    if store is not None:
        result = export_store(store_path(store), output, since, now_ms, _progress)
    else:
        result = export_cluster(router, data, output, since, now_ms, _progress, replicas=replicas)
    seconds = time.monotonic() - began
    _print(result | {"seconds": round(seconds, 2)}, as_json)


@app.command("import")
def import_(
    source: Annotated[Path, typer.Option("--input", help="Folder of exported or compacted runs, or a manifest in it.")],
    store: Annotated[Path | None, typer.Option("--store", help="One node's store: DATA/<node>/store.")] = None,
    data: Annotated[Path, typer.Option("--data", help="Folder of a stopped `stratamq up`: every storage node.")] = DATA,
    node: Annotated[str, typer.Option("--node", help="Node of --store if it does not exist yet.")] = "",
    cluster: Annotated[
        str, typer.Option("--cluster", help="Cluster of --store if it does not exist yet.")
    ] = "stratamq",
    any_cluster: Annotated[bool, typer.Option("--any-cluster", help="Accept runs of another cluster.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Replace a stopped node's store with exported runs; the former one is kept, quarantined."""
    from conf.errors import ExitCode, UserError
    from storage.export.importing import import_runs
    from storage.store.settings import StoreSettings

    stores = [store_path(store)] if store is not None else sorted(folder / "store" for folder in data.glob("storage-*"))
    if not stores:
        raise UserError(f"no storage node in {data}: pass --store", ExitCode.USAGE)
    for path in stores:
        began = time.monotonic()
        identity = _identity(path, node if store is not None else "", cluster)
        result = import_runs(source, path, identity, StoreSettings(), _progress, any_cluster=any_cluster)
        _print(
            {
                "store": str(path),
                "rows": result.rows,
                "sessions": result.sessions,
                "partitions": result.partitions,
                "finished_entries_left_out": result.finished,
                "former_store": str(result.former or ""),
                "seconds": round(time.monotonic() - began, 2),
            },
            as_json,
        )


def _identity(path: Path, node: str, cluster: str) -> tuple[str, str]:
    """Return the cluster and node that a store belongs to, or will belong to."""
    import tomllib

    from conf.errors import ExitCode, UserError
    from storage.store.errors import StoreError
    from storage.store.settings import StoreSettings
    from storage.store.store import Store

    if node:
        return cluster, node
    config = path.parent / "storage.toml"
    if config.exists():
        settings = tomllib.loads(config.read_text())["node"]
        return str(settings["cluster"]), str(settings["id"])
    try:
        opened = Store.open_existing(path, StoreSettings())
    except StoreError as error:
        raise UserError(f"{error}; pass --node and --cluster", ExitCode.USAGE) from None
    try:
        found = opened.identity()
    finally:
        opened.close()
    return found["cluster_id"], found["node_id"]


@app.command()
def stats(
    store: Annotated[
        Path | None, typer.Argument(help="A stopped node's store: DATA/<node>/store, or that node's folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Count the rows of a stopped node's store.

    Without STORE: statistics of the running storage nodes, with the options of `store replicas`.
    """
    from conf.errors import ExitCode, UserError
    from storage.store.errors import StoreError
    from storage.store.stats import store_stats

    if store is None:
        raise UserError("name a stopped node's store; query running nodes with -o json", ExitCode.USAGE)
    try:
        _print(store_stats(store_path(store)), as_json)
    except StoreError as error:
        raise UserError(str(error)) from None


@app.command()
def verify(
    store: Annotated[Path, typer.Argument(help="A stopped node's store: DATA/<node>/store, or that node's folder.")],
    as_json: JsonOption = False,
) -> None:
    """Check every record of a stopped node's store; exit code 1 if a record is damaged."""
    from conf.errors import ExitCode, UserError
    from storage.store.errors import StoreError
    from storage.store.scrub import verify as scrub

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
