"""``stratamq node ...``: the nodes of the cluster."""

from typing import Annotated

import typer

from stratamq.cli.commands import asks, group, verb_about
from stratamq.cli.node_drain import drain_node
from stratamq.cli.node_list import list_nodes
from stratamq.cli.node_requests import Options, answer
from stratamq.cli.output import print_result

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the group."""
    node = group(app, "node", "Nodes of the cluster.")
    node.command("list")(list_nodes)
    node.command("show")(show_node)
    node.command("drain")(drain_node)
    verb_about(node, "node undrain", "node", "Return a drained node to service.", changes=True)


@asks
def show_node(options: Options, name: Annotated[str, typer.Argument(metavar="NODE")]) -> None:
    """Show one node, from the cluster map and gossip."""
    from conf.errors import ExitCode, UserError

    for node in answer("node list", {}, options)["nodes"]:
        if node["node"] == name:
            print_result(node, options.output)
            return
    raise UserError(f"unknown node {name!r}: see `stratamq node list`", ExitCode.FAILED)
