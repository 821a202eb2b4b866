"""Parts that the commands of all gateways share: options, a run in the foreground, a question to the one that runs."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from conf.bridge_settings import GatewaySettings
    from conf.node_settings import LogSettings

__all__ = ["ReadyOption", "SetOption", "ask_process", "hand_options_on", "run_gateway"]

SetOption = Annotated[list[str] | None, typer.Option("--set", help="room.key=value, over file and environment.")]
ReadyOption = Annotated[int, typer.Option("--ready-fd", hidden=True, help="One line of JSON is written when ready.")]
ANSWER_BYTES_MAX = 64 * 1024 * 1024
ANSWER_S = 10.0


def hand_options_on(context: typer.Context) -> bool:
    """Give a verb the options that stand before it, as if they stood behind it; return whether there is a verb.

    Raises:
        UserError: The verb has no such option.
    """
    verb = context.invoked_subcommand
    if verb is None:
        return False
    given = {
        name: value
        for name, value in context.params.items()
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    }
    command: Any = context.command
    own = {parameter.name for parameter in command.commands[verb].params}
    if foreign := [name for name in given if name not in own]:
        from conf.errors import ExitCode, UserError

        flags = {parameter.name: parameter.opts[0] for parameter in command.params}
        raise UserError(f"`{verb}` has no option {flags[foreign[0]]}", ExitCode.USAGE)
    context.default_map = {verb: given}
    return True


def run_gateway(
    main: Callable[[Callable[[dict[str, Any]], None]], int], gateway: "GatewaySettings", logs: "LogSettings", ready: int
) -> None:
    """Run a gateway in the foreground, until it is told to stop; ends the command with its exit code.

    Args:
        main: Runs it and returns the exit code; it calls what it is given once, with its addresses.
        ready: Descriptor for the line of addresses; negative: none.
    """
    from conf.logs import configure_logs
    from stratamq.cli.tiers import tell_ready
    from wire.node.signals import survive_signals

    survive_signals()
    configure_logs(logs, gateway.id)
    raise typer.Exit(main(lambda addresses: tell_ready(ready, addresses)))


def ask_process(path: Path, who: str, question: dict[str, str] | None = None) -> Any:
    """Return what a gateway answers at the socket in its data folder.

    Args:
        who: As in *no agent answers at ...*.
        question: Sent as one line; none: it answers without one.
    Raises:
        UserError: Nobody answers there, or not in JSON.
    """
    from conf.errors import ExitCode, UserError

    received = bytearray()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(str(path))
            if question is not None:
                connection.sendall(json.dumps(question).encode() + b"\n")
            while (data := connection.recv(65_536)) and len(received) < ANSWER_BYTES_MAX:
                received += data
        return json.loads(received)
    except (OSError, ValueError, RecursionError) as error:
        text = f"no {who} answers at {path}: {getattr(error, 'strerror', None) or error}"
        raise UserError(text, ExitCode.NOT_READY) from None
