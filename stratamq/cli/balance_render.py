"""``stratamq balance render``: the configuration of another balancer, printed once, or kept in a file.

A file is replaced as a whole and only when something changed, at most once a second; then the command is run.
"""

import shlex
import subprocess
import time
from pathlib import Path
from typing import Annotated

import typer

from stratamq.cli.commands import asks
from stratamq.cli.node_requests import Options, ask
from stratamq.cli.output import OutputFormat, print_result

__all__ = ["keep_file", "render"]

REST_S = 1.0
LOST_S = 60.0  # without a router the file stays as it is


@asks
def render(
    options: Options,
    kind: Annotated[str, typer.Argument(metavar="haproxy|nginx|envoy")],
    listener: Annotated[str, typer.Option(help="Listener of the edges.")] = "tls",
    bind: Annotated[str, typer.Option(help="host:port of the proxy; :port for all addresses.")] = ":8883",
    health_port: Annotated[int, typer.Option(min=0, max=65535, help="Of /readyz at each edge; 0: none.")] = 0,
    proxy: Annotated[bool, typer.Option("--proxy", help="The listener expects PROXY headers.")] = False,
    watch: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep this file up to date.")] = None,
    command: Annotated[str, typer.Option("--exec", metavar="COMMAND", help="Run after each change of it.")] = "",
) -> None:
    """Write the configuration of another balancer from the edges that the map has."""
    from conf.errors import ExitCode, UserError
    from gateways.balancer.render import render as written
    from gateways.balancer.render import targets

    if command and watch is None:
        raise UserError("--exec needs --watch: the file after whose change it runs", ExitCode.USAGE)

    def now() -> str:
        reply = ask("node list", {}, options, lost_s=LOST_S if watch is not None else 0.0)
        if not reply.ok:
            raise UserError(reply.error, reply.exit_code or ExitCode.FAILED)
        return written(kind, targets(reply.result["nodes"], listener), listener, bind, health_port, proxy=proxy)

    if watch is None:
        if options.output in (OutputFormat.TABLE, OutputFormat.WIDE):
            typer.echo(now(), nl=False)
        else:
            print_result({"kind": str(kind), "text": now()}, options.output)
        return
    while True:
        keep_file(watch, now(), command)
        time.sleep(REST_S)  # behind the command, however long it took to start: at most one a second


def keep_file(path: Path, text: str, command: str) -> None:
    """Replace a file if its content is another, then run the command."""
    from conf.errors import UserError

    try:
        if path.exists() and path.read_text() == text:
            return
        new = path.with_name(f"{path.name}.new")
        new.write_text(text)
        new.replace(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    typer.echo(f"{path}: written")
    if command:
        ended = subprocess.run(shlex.split(command), check=False)
        if ended.returncode:
            typer.echo(f"`{command}` ended with exit code {ended.returncode}", err=True)
