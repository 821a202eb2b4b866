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

__all__ = ["ReadyOption", "SetOption", "ask_process", "run_gateway"]

SetOption = Annotated[list[str] | None, typer.Option("--set", help="room.key=value, over file and environment.")]
ReadyOption = Annotated[int, typer.Option("--ready-fd", hidden=True, help="One line of JSON is written when ready.")]
ANSWER_BYTES_MAX = 64 * 1024 * 1024
ANSWER_S = 10.0


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
