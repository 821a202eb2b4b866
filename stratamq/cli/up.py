"""``stratamq up``: a complete local cluster (implemented in ``stratamq/cluster.py``)."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up")(up)


def up(
    edges: Annotated[
        int | None, typer.Option(min=0, max=32, help="Number of edges; default 2, with --balance 3.")
    ] = None,
    routers: Annotated[int, typer.Option(min=1, max=5, help="Number of routers: 1, 3 or 5.")] = 1,
    storages: Annotated[int, typer.Option(min=0, max=32, help="Number of storage nodes.")] = 1,
    data: Annotated[Path, typer.Option(help="Data folder, kept between runs.")] = Path("data"),
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Use an empty temporary folder and delete it at the end.")
    ] = False,
    tls_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="MQTT over TLS: edge i listens on this port + i; 0: any free port."),
    ] = None,
    plain_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="MQTT without TLS, loopback only; default: disabled.")
    ] = None,
    ws_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="MQTT over WebSocket, loopback only; default: disabled.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.key=value for every node that has the section; repeatable."),
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Print the nodes' logs to the terminal instead of files.")
    ] = False,
    balance: Annotated[bool, typer.Option("--balance", help="Run a load balancer in front of the edges.")] = False,
    no_admin: Annotated[bool, typer.Option("--no-admin", help="Do not run the HTTP service and dashboard.")] = False,
    admin_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the dashboard on loopback; default 18083 if free.")
    ] = None,
    no_restart: Annotated[bool, typer.Option("--no-restart", help="Do not restart killed nodes.")] = False,
) -> None:
    """Run a local cluster until Ctrl-C, each node in its own process."""
    from stratamq.cluster import UpOptions, run_up

    options = UpOptions(
        edges=edges if edges is not None else 3 if balance else 2,
        routers=routers,
        storages=storages,
        data=None if ephemeral else data,
        tls_port=tls_port,
        plain_port=plain_port,
        ws_port=ws_port,
        settings=tuple(settings or ()),
        foreground=foreground,
        restart=not no_restart,
        balance=balance,
        admin=not no_admin,
        admin_port=admin_port,
    )
    raise typer.Exit(run_up(options))
