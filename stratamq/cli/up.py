"""``stratamq up``: a whole cluster on this machine (the work is in ``stratamq/cluster.py``)."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up")(up)


def up(
    edges: Annotated[
        int | None, typer.Option(min=0, max=32, help="Connection nodes; default 2, and 3 with --balance.")
    ] = None,
    routers: Annotated[int, typer.Option(min=1, max=5, help="Routing nodes: 1, 3 or 5.")] = 1,
    storages: Annotated[int, typer.Option(min=0, max=32, help="Storage nodes.")] = 1,
    data: Annotated[Path, typer.Option(help="Folder that keeps everything from one run to the next.")] = Path("data"),
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Start empty in a temporary folder, removed at the end.")
    ] = False,
    tls_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="MQTT over TLS: edge i listens on this + i; 0: chosen.")
    ] = None,
    plain_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="MQTT without TLS, loopback only; not opened by default.")
    ] = None,
    ws_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="MQTT over WebSocket, loopback only; not opened by default.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="room.key=value for every node that has the room; repeat.")
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Show the nodes' logs here instead of writing them to files.")
    ] = False,
    balance: Annotated[bool, typer.Option("--balance", help="A balancer in front of the edges: one port.")] = False,
    no_admin: Annotated[bool, typer.Option("--no-admin", help="No HTTP service, no dashboard.")] = False,
    admin_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The dashboard, on loopback; default 18083 if free.")
    ] = None,
    no_restart: Annotated[bool, typer.Option("--no-restart", help="Do not start killed nodes again.")] = False,
) -> None:
    """Run a local cluster, each tier as its own process, until Ctrl-C."""
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
