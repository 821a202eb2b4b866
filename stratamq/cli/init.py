"""``stratamq init``: certificates and configuration files of a cluster (the work is in ``stratamq/init_folder.py``)."""

import contextlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stratamq.init_folder import ClusterFolder
    from stratamq.init_plan import Layout, LayoutNode

__all__ = ["register"]

NODE = "TIER/NAME[=HOST]"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("init")(init)


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the cluster.")],
    node: Annotated[
        list[str] | None,
        typer.Option(metavar=NODE, help="Node and its host; repeatable. Default: one node of each tier on loopback."),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            metavar=NODE, help="Add a node to the cluster in DIR, or a gateway certificate with gateway/NAME."
        ),
    ] = None,
    cluster: Annotated[str, typer.Option(help="Name of a new cluster.")] = "stratamq",
) -> None:
    """Create certificates and configuration files, so that the three tiers run as services."""
    import datetime

    from conf.errors import ExitCode, UserError
    from stratamq.init_folder import ClusterFolder

    if node and add:
        raise UserError("--node creates a new cluster, --add extends one: use only one of them", ExitCode.USAGE)
    made = ClusterFolder(folder, datetime.datetime.now(datetime.UTC))
    if add:
        layout, added, gateways = made.add(add)
        if added:
            _say_added(made, added)
        _say_gateways(made, gateways)
    else:
        layout = made.create(cluster, node or [])
        _say_created(made, layout)
    if layout.unreached:
        typer.echo(f"stratamq: {layout.unreached}", err=True)


def _say_created(folder: "ClusterFolder", layout: "Layout") -> None:
    path = folder.path
    typer.echo(f"{path}: authorities for nodes ({path}/tls) and clients ({path}/clients), {len(layout.nodes)} nodes")
    typer.echo(_copies(layout))
    _say_copying(folder, layout.nodes)
    _say_starts(folder, layout.nodes)
    edges = layout.of_tier("edge")
    device = f"--cafile {path}/clients/ca.pem --cert {path}/clients/device.pem --key {path}/clients/device.key"
    typer.echo("\nWhen the edge is ready:")
    typer.echo(f"  mosquitto_sub {_dial(edges[0])} {device} -t 'hello/#' -v")
    typer.echo(f"  mosquitto_pub {_dial(edges[-1])} {device} -t hello/world -m Hello -q 1")
    typer.echo(f"  {_command()} cluster status --data {path}")
    typer.echo(f"\nTo add a node later:\n  {_command()} init {path} --add edge/edge-{len(edges)}=HOST")
    typer.echo(f"{path}/tls/ca.key can issue any node, {path}/clients/ca.key any client: store both elsewhere.")


def _copies(layout: "Layout") -> str:
    storages = len(layout.of_tier("storage"))
    if layout.copies == 1:
        return (
            "1 copy of every message, because there is 1 storage node: data on a failed disk is lost. The number is\n"
            "fixed at the first start; for three copies, give --node storage/NAME three times."
        )
    return f"{layout.copies} copies of every message, on {storages} storage nodes; fixed at the first start."


def _say_added(folder: "ClusterFolder", added: Sequence["LayoutNode"]) -> None:
    names = ", ".join(node.name for node in added)
    typer.echo(f"{folder.path}: added {names}")
    _say_copying(folder, added)
    _say_starts(folder, added)
    then = {
        "router": f"{_command()} cluster join {{name}} --data {{path}}",
        "storage": f"{_command()} ring add {{name}} --data {{path}}",
    }
    lines = [then[node.tier].format(name=node.name, path=folder.path) for node in added if node.tier in then]
    if lines:
        typer.echo("\nWhen it runs, assign its share:")
        for line in lines:
            typer.echo(f"  {line}")


def _say_gateways(folder: "ClusterFolder", names: Sequence[str]) -> None:
    for name in names:
        certificate, key = folder.gateway_files(name)
        typer.echo(f"{certificate} and {key}: gateway {name}, user gateway/{name} at listeners with client_ca")


def _say_starts(folder: "ClusterFolder", nodes: Sequence["LayoutNode"]) -> None:
    here = all(node.local for node in nodes)
    command = _command() if here else "stratamq"
    typer.echo("\nStart, each in its own terminal:" if here else "\nStart, each on its own host:")
    for node in nodes:
        where = "" if node.local else f"    # on {node.host}"
        typer.echo(f"  {command} {node.tier} --config {folder.config(node)}{where}")


def _say_copying(folder: "ClusterFolder", nodes: Sequence["LayoutNode"]) -> None:
    """Print the commands that copy the files of nodes to other hosts."""
    hosts = {node.host: [other for other in nodes if other.host == node.host] for node in nodes if not node.local}
    if not hosts:
        return
    typer.echo("\nCopy to the same path on the other hosts:")
    for host, there in hosts.items():
        files = dict.fromkeys(str(file) for node in there for file in folder.files(node))
        typer.echo(f"  tar c {' '.join(files)} | ssh {host} tar xp")


def _dial(edge: "LayoutNode") -> str:
    return f"-h {edge.host} -p {edge.client_port}"


def _command() -> str:
    """Return the command line that started this process, so printed commands work at the same prompt."""
    called = Path(sys.argv[0])
    on_path = shutil.which("stratamq")
    if called.name != "stratamq" or (on_path is not None and Path(on_path).samefile(called)):
        return "stratamq"
    with contextlib.suppress(ValueError):
        return str(called.absolute().relative_to(Path.cwd()))
    return str(called)
