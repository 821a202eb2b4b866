"""``stratamq config show | check``: what a node would run with, and what is wrong with it."""

from pathlib import Path
from typing import Annotated

import typer

from stratamq.cli.output import OutputFormat, OutputOption, print_result
from stratamq.cli.tiers import ConfigOption, SetOption

__all__ = ["register"]

TierArgument = Annotated[str, typer.Argument(help="edge, router, storage or balance.", metavar="TIER")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    group.command("show")(show)
    group.command("check")(check)
    app.add_typer(group, name="config", help="Settings: show and check.", no_args_is_help=True)


def show(
    tier: TierArgument,
    config: ConfigOption = None,
    settings: SetOption = None,
    effective: Annotated[
        bool, typer.Option("--effective", help="Every setting, defaults included, with its source.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what a node would run with, and where each value comes from."""
    rows = [row for row in _rows(tier, config, settings or []) if effective or row["source"] != "default"]
    print_result(rows, output)


def check(tier: TierArgument, config: ConfigOption = None, settings: SetOption = None) -> None:
    """Report every mistake, one line each; exit code 2 when there is one."""
    _load(tier, config, settings or [])
    typer.echo("ok")


def _load(tier: str, config: Path | None, flags: list[str]) -> object:
    from conf.errors import ExitCode, UserError
    from conf.settings import BALANCE, TIERS
    from stratamq.rooms import load_config

    if tier not in (*TIERS, BALANCE):
        raise UserError(f"no tier {tier!r}: expected {', '.join((*TIERS, BALANCE))}", ExitCode.USAGE)
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
    return {"setting": setting, "value": value, "source": sources.get(setting, "default")}
