"""``stratamq balance render``: prints the configuration of another load balancer, or keeps a file up to date.

The file is replaced atomically, only if its content changed, and at most once a second; then the command runs.
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
LOST_S = 60.0  # without a router, before the command fails; the file is kept


@asks
def render(
    options: Options,
    kind: Annotated[str, typer.Argument(metavar="haproxy|nginx|envoy")],
    listener: Annotated[str, typer.Option(help="Listener of the edges.")] = "tls",
    bind: Annotated[
        str, typer.Option(help="Listening address of the proxy, host:port; :port for all addresses.")
    ] = ":8883",
    health_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of /readyz on each edge; 0: no health checks.")
    ] = 0,
    proxy: Annotated[bool, typer.Option("--proxy", help="The listener expects PROXY headers.")] = False,
    watch: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep this file up to date.")] = None,
    command: Annotated[
        str, typer.Option("--exec", metavar="COMMAND", help="Command to run after each change of the file.")
    ] = "",
) -> None:
    """Print the configuration of HAProxy, nginx or Envoy for the edges of the cluster map."""
    from conf.errors import ExitCode, UserError
    from gateways.balancer.render import render as written
    from gateways.balancer.render import targets

    if command and watch is None:
        raise UserError("--exec requires --watch FILE", ExitCode.USAGE)

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
        time.sleep(REST_S)  # after the command, so it starts at most once a second


def keep_file(path: Path, text: str, command: str) -> None:
    """Replace a file if its content differs, then run the command."""
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
            typer.echo(f"`{command}` failed with exit code {ended.returncode}", err=True)
