"""Code of all gateway commands: options, running in the foreground, and requests to a running gateway."""

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

SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value; overrides file and environment.")
]
ReadyOption = Annotated[int, typer.Option("--ready-fd", hidden=True, help="One line of JSON is written when ready.")]
ANSWER_BYTES_MAX = 64 * 1024 * 1024
ANSWER_S = 10.0


def hand_options_on(context: typer.Context) -> bool:
    """Move options that precede a verb behind it; return whether there is a verb.

    Raises:
        UserError: The verb does not have one of the options.
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
    """Run a gateway in the foreground until it is stopped; end the command with its exit code.

    Args:
        main: Runs the gateway and returns the exit code; calls its argument once with the addresses.
        ready: File descriptor for the line of addresses; negative: none.
    """
    from conf.logs import configure_logs
    from stratamq.cli.tiers import tell_ready
    from wire.node.signals import survive_signals

    survive_signals()
    configure_logs(logs, gateway.id)
    raise typer.Exit(main(lambda addresses: tell_ready(ready, addresses)))


def ask_process(path: Path, who: str, question: dict[str, str] | None = None) -> Any:
    """Return the reply of a gateway from the socket in its data folder.

    Args:
        who: Kind of process in the error message.
        question: Request, sent as one line; None: the gateway replies without a request.
    Raises:
        UserError: No process responds, or its reply is not JSON.
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
        text = f"no {who} responds at {path}: {getattr(error, 'strerror', None) or error}"
        raise UserError(text, ExitCode.NOT_READY) from None
