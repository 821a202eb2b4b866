"""``stratamq config show | list | diff | check``: settings of a file and of running nodes, and their errors."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratamq.cli.commands import asks
from stratamq.cli.field_view import api_path
from stratamq.cli.listing import add_list
from stratamq.cli.node_requests import Options
from stratamq.cli.output import OutputFormat, print_result
from stratamq.cli.tiers import ConfigOption, SetOption

if TYPE_CHECKING:
    from admin.queries import Cluster

__all__ = ["register"]

NodeOption = Annotated[str, typer.Option("--node", help="Show this running node instead of a tier and a file.")]
NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="NODE NODE ...", help="Default: all nodes of a tier.")
]
TierOption = Annotated[str, typer.Option("--tier", help="edge, router or storage.")]
ROWS_MAX = 10_000  # a node has a few hundred settings
OWN = {"id", "data_dir", "certificate", "key", "bind", "port", "advertise"}  # settings that differ on each node
TierArgument = Annotated[str, typer.Argument(help="edge, router, storage or balance.", metavar="TIER")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    group.command("show")(show)
    add_list(group, "list", "config")
    group.command("diff")(diff)
    group.command("check")(check)
    app.add_typer(group, name="config", help="Settings: show, compare and check.", no_args_is_help=True)


@asks
def show(
    options: Options,
    tier: TierArgument = "",
    config: ConfigOption = None,
    settings: SetOption = None,
    effective: Annotated[
        bool, typer.Option("--effective", help="Show every setting, defaults included, with its source.")
    ] = False,
    node: NodeOption = "",
) -> None:
    """Show the settings of a configuration or of a running node, with the source of each value."""
    from conf.errors import ExitCode, UserError

    if bool(tier) == bool(node) or (node and (config or settings)):
        raise UserError("name a tier (with its --config and --set), or a running node with --node", ExitCode.USAGE)
    if node:
        running = _running((node,), options)[node]
        rows: list[dict[str, object]] = [
            {"setting": name, "value": value, "source": source} for name, (value, source) in running.items()
        ]
    else:
        rows = _rows(tier, config, settings or [])
    shown = [row for row in rows if effective or row["source"] != "default"]
    if not shown and options.output in (OutputFormat.TABLE, OutputFormat.WIDE):
        typer.echo("all settings have their defaults; --effective shows them")
        return
    print_result(shown, options.output)


@asks
def diff(options: Options, nodes: NamesArgument = None, tier: TierOption = "edge") -> None:
    """Compare the settings of running nodes, except names, addresses and files; exit code 1 if they differ."""
    from conf.errors import ExitCode, UserError

    if nodes and len(set(nodes)) < 2:
        raise UserError("name at least two nodes, or none to compare all nodes of --tier", ExitCode.USAGE)
    running = _running(tuple(nodes or ()), options, tier)
    names = sorted({name for found in running.values() for name in found if name.rpartition(".")[2] not in OWN})
    rows = [
        {"setting": name} | {node: found.get(name, ("", ""))[0] for node, found in running.items()} for name in names
    ]
    differing = [row for row in rows if len({row[node] for node in running}) > 1]
    if not differing and options.output in (OutputFormat.TABLE, OutputFormat.WIDE):
        typer.echo("no settings differ")
    else:
        print_result(differing, options.output)
    if differing:
        raise typer.Exit(ExitCode.FAILED)


def _running(nodes: tuple[str, ...], options: Options, tier: str = "") -> dict[str, dict[str, tuple[str, str]]]:
    """Return the value and source of each setting by running node; a secret's value is ``***``.

    Raises:
        UserError: A node does not respond.
    """
    from admin.queries import ListQuery, ListResult, walk
    from conf.errors import ExitCode, UserError
    from stratamq.cli.cluster_requests import with_cluster

    async def ask(cluster: "Cluster") -> ListResult:
        wanted = ListQuery(nodes=nodes, limit=ROWS_MAX, tier="" if nodes else tier)
        return await walk(cluster, "config", wanted)

    if options.show_api:
        typer.echo(api_path("GET", "config", node=",".join(nodes)))
        raise typer.Exit
    found = with_cluster(options, ask)
    if found.partial:
        named = "; ".join(f"{missing.node}: {missing.why}" for missing in found.partial)
        raise UserError(f"result is not complete: {named}", ExitCode.PARTIAL)
    settings: dict[str, dict[str, tuple[str, str]]] = {node: {} for node in nodes}
    for node, row in found.rows:
        settings.setdefault(node, {})[row.name or ""] = row.value or "", row.source or "default"
    return settings


def check(tier: TierArgument, config: ConfigOption = None, settings: SetOption = None) -> None:
    """Validate settings and report every error, one per line; exit code 2 if there is one."""
    _load(tier, config, settings or [])
    typer.echo("ok")


def _load(tier: str, config: Path | None, flags: list[str]) -> object:
    from conf.errors import ExitCode, UserError
    from conf.settings import BALANCE, TIERS
    from stratamq.packages import load_config

    if tier not in (*TIERS, BALANCE):
        raise UserError(f"unknown tier {tier!r}: expected {', '.join((*TIERS, BALANCE))}", ExitCode.USAGE)
    return load_config(tier, config, flags)


def _rows(tier: str, config: Path | None, flags: list[str]) -> list[dict[str, object]]:
    from pydantic import BaseModel

    loaded = _load(tier, config, flags)
    sources: dict[str, str] = loaded.sources  # type: ignore[attr-defined]
    rows: list[dict[str, object]] = []
    for room in ("node", tier, "membership", "metrics", "logs"):
        model = getattr(loaded, room)
        for key, value in model or ():
            if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
                for item in value:
                    name = getattr(item, "name", "")
                    rows += [_row(sources, f"{room}.{key}.{name}.{inner}", content) for inner, content in item]
            else:
                rows.append(_row(sources, f"{room}.{key}", value))
    return rows


def _row(sources: dict[str, str], setting: str, value: object) -> dict[str, object]:
    from conf.secret_names import shown_value

    return {"setting": setting, "value": shown_value(setting, value), "source": sources.get(setting, "default")}
