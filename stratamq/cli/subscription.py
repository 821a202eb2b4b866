"""``stratamq subscription ...``: subscriptions of clients."""

from typing import TYPE_CHECKING

import typer

from stratamq.cli.cells import fields_of
from stratamq.cli.client import known
from stratamq.cli.cluster_requests import with_cluster
from stratamq.cli.commands import group
from stratamq.cli.field_view import ClientArgument, FieldView, api_path, point_options, print_view
from stratamq.cli.listing import add_list
from stratamq.cli.node_requests import Options

if TYPE_CHECKING:
    from admin.queries import ClientView, Cluster
    from admin.scatter_gather import MissingRows
    from wire.messages.client_rows import SubscriptionListRow

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the group."""
    subscriptions = group(app, "subscription", "Subscriptions of sessions.")
    add_list(subscriptions, "list", "subscription")
    subscriptions.command("show")(show)


@point_options
def show(point: FieldView, options: Options, client_id: ClientArgument) -> None:
    """Show the subscriptions of one client, with the delivering nodes."""
    from admin.queries import client, subscriptions

    if options.show_api:
        typer.echo(api_path("GET", "clients", client_id, "subscriptions"))
        return

    async def ask(cluster: "Cluster") -> "tuple[ClientView, list[SubscriptionListRow], tuple[MissingRows, ...]]":
        view = known(await client(cluster, client_id))
        return view, *await subscriptions(cluster, view)

    view, rows, more = with_cluster(options, ask, point.timeout_s)
    held = [fields_of(row) or {} for row in rows]
    for row in held:
        row.pop("client_id", None)
        row["session"] = row.get("session") or None  # ephemeral sessions have no number
    partial = tuple(dict.fromkeys((*view.partial, *more)))
    print_view({"client_id": client_id, "online": bool(view.edge), "subscriptions": held}, partial, options, point)
