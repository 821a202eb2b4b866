"""``stratamq federate``: run an agent, create certificates and configurations, and inspect a federation."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratamq.cli.gateway_process import ReadyOption, SetOption, ask_process, hand_options_on, run_gateway
from stratamq.cli.output import OutputFormat, OutputOption, print_result

if TYPE_CHECKING:
    from conf.federate_settings import FederateSettings
    from conf.gateway_config import GatewayConfig

__all__ = ["register"]

ConfigOption = Annotated[Path, typer.Option("--config", help="TOML file; conf/federate.toml shows every setting.")]
DEFAULT = Path("conf/federate.toml")


def register(app: typer.Typer) -> None:
    """Add the group; without a verb it runs the agent."""
    group = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    group.callback(invoke_without_command=True)(run)
    group.command("init")(init)
    group.command("status")(status)
    group.command("graph")(graph)
    group.command("topics")(topics)
    group.command("why")(why)
    group.command("forget")(forget)
    app.add_typer(group, name="federate", help="Run and inspect an agent that federates a broker with others.")


def run(
    context: typer.Context, config: ConfigOption = DEFAULT, settings: SetOption = None, ready_fd: ReadyOption = -1
) -> None:
    """Run one agent in the foreground until it is stopped."""
    if hand_options_on(context):
        return
    from gateways.federation.service import main

    loaded = _load(config, settings)
    run_gateway(lambda ready: main(loaded, ready), loaded.gateway, loaded.logs, ready_fd)


def init(
    folder: Annotated[Path, typer.Argument(help="Folder to create; an existing authority in it is reused.")],
    federation: Annotated[str, typer.Option("--federation", help="Name of the federation.")],
    agent: Annotated[list[str], typer.Option("--agent", help="NAME or NAME=HOST[:PORT]; repeatable.")],
    link: Annotated[
        list[str] | None, typer.Option("--link", help="Link between two agents, NAME-NAME; repeatable.")
    ] = None,
) -> None:
    """Create an authority, and a certificate and a configuration for each agent."""
    from stratamq.federate_folder import make_folder

    for path in make_folder(folder, federation, agent, link or []):
        typer.echo(str(path))


def status(
    config: ConfigOption = DEFAULT, settings: SetOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show the state of an agent, its broker, its neighbours and all other agents."""
    found = _ask(config, settings, "status")
    if output is OutputFormat.JSON:
        print_result(found, output)
        return
    rows = [{"what": key, "value": value} for key, value in found.items() if not isinstance(value, list | dict)]
    rows += [{"what": f"neighbour {each['name']}", "value": _neighbour(each)} for each in found["neighbours"]]
    rows += [{"what": f"away {address}", "value": why} for address, why in found["away"].items()]
    rows += [
        {"what": f"agent {each['name']}", "value": _reached(each["distance"], each["next_hops"])}
        for each in found["agents"]
    ]
    rows += [{"what": "captures", "value": each} for each in found["capture"]]
    rows += [{"what": "waits for the broker's SUBACK", "value": each} for each in found["capture_asked"]]
    rows += [{"what": f"count {name}", "value": count} for name, count in found["counts"].items()]
    print_result(rows, output)


def graph(
    config: ConfigOption = DEFAULT,
    settings: SetOption = None,
    dot: Annotated[bool, typer.Option("--dot", help="Print the Graphviz format.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the agents and the links between them."""
    found = _ask(config, settings, "graph")
    if output is OutputFormat.JSON:
        print_result(found, output)
        return
    if not dot:
        for one, other in found["links"]:
            typer.echo(f"{one} -- {other}")
        for name in sorted(set(found["agents"]) - {each for link in found["links"] for each in link}):
            typer.echo(f"{name}, without a link")
        return
    typer.echo("graph federation {")
    for name in found["agents"]:
        typer.echo(f'  "{name}";')
    for one, other in found["links"]:
        typer.echo(f'  "{one}" -- "{other}";')
    typer.echo("}")


def topics(
    config: ConfigOption = DEFAULT, settings: SetOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show each federated filter with its core and members."""
    print_result(_ask(config, settings, "topics"), output)


def why(
    topic: Annotated[str, typer.Argument(help="Topic name of a message published at this agent's broker.")],
    config: ConfigOption = DEFAULT,
    settings: SetOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the filters, cores, distribution trees and paths of a message that is published here."""
    _check_topic(topic)
    found = _ask(config, settings, "why", topic)
    if output is OutputFormat.JSON:
        print_result(found, output)
        return
    rows = [{"what": "captured by", "value": each} for each in found["captured_by"]]
    rows += [{"what": "not captured before the broker's SUBACK", "value": each} for each in found["asked_for"]]
    rows += [
        {"what": f"filter {each['filter']}", "value": f"core {each['core']}, members {', '.join(each['members'])}"}
        for each in found["filters"]
    ]
    rows += [
        {
            "what": f"distribution tree of {each['filter']}",
            "value": f"towards the core: {_names(each['parents'])}; members below: {_names(each['children'])}",
        }
        for each in found["filters"]
    ]
    for each in found["to"]:
        rows.append({"what": f"to {each['agent']}", "value": _reached(each["distance"], each["through"])})
        rows += [{"what": f"path to {each['agent']}", "value": " > ".join(each["path"])}] if each["path"] else []
    print_result(rows or [{"what": topic, "value": "no agent subscribes to it; it stays on this broker"}], output)


def forget(
    agent: Annotated[str, typer.Argument(help="Name of an agent that is gone permanently.")],
    config: ConfigOption = DEFAULT,
    settings: SetOption = None,
) -> None:
    """Remove an agent permanently; all agents drop the messages that they store for it."""
    found = _ask(config, settings, "forget", agent)
    dropped = f"{found.get('messages_dropped', 0)} messages stored for it here were dropped"
    typer.echo(f"{agent} is removed; {dropped}, other agents drop theirs; if it returns, it is a new agent")


def _reached(distance: int | None, through: list[str]) -> str:
    if distance is None:
        return "unreachable: messages are stored"
    return f"distance {distance} by {_names(through)}" if distance else "here"


def _names(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _check_topic(topic: str) -> None:
    from conf.errors import ExitCode, UserError
    from mqtt.errors import MqttError
    from mqtt.topics import validate_topic_name

    try:
        validate_topic_name(topic)
    except MqttError as error:
        raise UserError(f"{topic!r} is not a valid topic name: {error}", ExitCode.USAGE) from None
    if topic.startswith("$"):
        raise UserError(f"{topic}: topics that begin with $ are never forwarded", ExitCode.USAGE)


def _neighbour(each: dict[str, Any]) -> str:
    found = f"up, {each['round_trip_ms']} ms" if each["up"] else "down"
    if each["passed_by"]:
        found += f", passed by ({each['passed_by']})"
    for agent, messages in each["not_passed_on"].items():
        found += f", stores {messages} messages for {agent} that were not forwarded"
    return found


def _ask(config: Path, settings: list[str] | None, verb: str, argument: str = "") -> Any:
    """Return the reply of the agent that runs with a configuration file."""
    from conf.errors import UserError
    from gateways.federation.service import STATUS_SOCKET

    folder = _load(config, settings).gateway.data_dir
    found = ask_process(folder / STATUS_SOCKET, "agent", {"verb": verb, "argument": argument})
    if isinstance(found, dict) and "error" in found:
        raise UserError(str(found["error"]))
    return found


def _load(config: Path, settings: list[str] | None) -> "GatewayConfig[FederateSettings]":
    import os

    from conf.federate_settings import FEDERATE_DEFAULTS, FederateSettings
    from conf.gateway_config import load_gateway

    kind = ("federate", FederateSettings)
    return load_gateway(kind, FEDERATE_DEFAULTS, config, environment=os.environ, flags=settings or [])
