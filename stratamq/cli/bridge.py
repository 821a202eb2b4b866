"""``stratamq bridge``: run bridges, check them, test their rules, show their status, convert Mosquitto's."""

from pathlib import Path
from typing import Annotated, Any

import typer

from stratamq.cli.gateway_process import ReadyOption, SetOption, ask_process, hand_options_on, run_gateway
from stratamq.cli.output import OutputFormat, OutputOption, print_result

__all__ = ["register"]

ConfigOption = Annotated[Path, typer.Option("--config", help="TOML file; conf/bridge.toml shows every setting.")]
DEFAULT = Path("conf/bridge.toml")


def register(app: typer.Typer) -> None:
    """Add the group; without a verb it runs the bridges."""
    group = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    group.callback(invoke_without_command=True)(run)
    group.command("check")(check)
    group.command("try")(try_rules)
    group.command("status")(status)
    group.command("import")(import_file)
    app.add_typer(group, name="bridge", help="Run and inspect bridges to other brokers and systems.")


def run(
    context: typer.Context, config: ConfigOption = DEFAULT, settings: SetOption = None, ready_fd: ReadyOption = -1
) -> None:
    """Run every bridge of a file in the foreground until it is stopped."""
    if hand_options_on(context):
        return
    from gateways.bridges.service import main

    loaded = _load(config, settings)
    run_gateway(lambda ready: main(loaded, ready), loaded.gateway, loaded.logs, ready_fd)


def check(
    config: ConfigOption = DEFAULT, settings: SetOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Connect to both sides of each bridge and verify certificates, permissions and filters; forward nothing."""
    from conf.errors import ExitCode
    from gateways.bridges.service import check as look

    rows = [
        {"bridge": name, "ok": finding.ok, "side": finding.side, "found": finding.text}
        for name, finding in look(_load(config, settings))
    ]
    print_result(rows, output)
    if not all(row["ok"] for row in rows):
        raise typer.Exit(ExitCode.FAILED)


def try_rules(
    topic: Annotated[str, typer.Option("--topic", help="Topic name of the message.")],
    payload: Annotated[str, typer.Option("--payload", help="Payload of the message; @FILE reads a file.")] = "",
    qos: Annotated[int, typer.Option("--qos", min=0, max=2, help="QoS of the message.")] = 1,
    bridge: Annotated[str, typer.Option("--bridge", help="Only this bridge.")] = "",
    config: ConfigOption = DEFAULT,
    settings: SetOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print the record that each sink would receive, or the rule that drops the message; opens no connection."""
    from gateways.bridges.rule_trial import try_message

    content = Path(payload[1:]).read_bytes() if payload.startswith("@") else payload.encode()
    print_result(try_message(_load(config, settings), bridge, topic, content, qos), output)


def status(
    config: ConfigOption = DEFAULT, settings: SetOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show the state of each bridge of the process that runs with this file."""
    from gateways.bridges.service import STATUS_SOCKET

    folder = _load(config, settings).gateway.data_dir
    print_result(ask_process(folder / STATUS_SOCKET, "bridge process"), output)


def import_file(
    file: Annotated[Path, typer.Argument(metavar="MOSQUITTO.CONF", help="File with `connection` sections.")],
    cluster: Annotated[str, typer.Option("--cluster", help="Address of an edge.")] = "mqtts://127.0.0.1:8883",
) -> None:
    """Convert Mosquitto's bridges to tables for conf/bridge.toml; unsupported options are listed on stderr."""
    import sys

    from conf.errors import ExitCode, UserError
    from stratamq.mosquitto_bridges import import_mosquitto

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: {getattr(error, 'strerror', None) or error}", ExitCode.USAGE) from None
    found = import_mosquitto(text, cluster)
    typer.echo(found.toml, nl=False)
    for note in found.notes:
        print(f"stratamq: {file}: {note}", file=sys.stderr)
    if found.notes:
        raise typer.Exit(ExitCode.PARTIAL if found.toml else ExitCode.FAILED)


def _load(config: Path, settings: list[str] | None) -> Any:
    import os

    from conf.bridge_config import load_bridges

    return load_bridges(config, environment=os.environ, flags=settings or [])
