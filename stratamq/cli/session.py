"""``stratamq session ...`` and ``queue ...``: sessions and their queues."""

from typing import TYPE_CHECKING, Annotated

import typer

from stratamq.cli.cells import fields_of
from stratamq.cli.client import known
from stratamq.cli.cluster_requests import with_cluster
from stratamq.cli.commands import asks, group
from stratamq.cli.field_view import ClientArgument, DryOption, FieldView, YesOption, api_path, point_options, print_view
from stratamq.cli.listing import add_list
from stratamq.cli.lists import LIMIT
from stratamq.cli.node_requests import Options, show_nodes

if TYPE_CHECKING:
    from admin.queries import ClientView, Cluster
    from admin.scatter_gather import MissingRows
    from wire.messages.client_rows import QueuedMessageRow, SubscriptionListRow

__all__ = ["register"]

HEAD = "head: the first bytes; requires role operator."
PayloadOption = Annotated[str, typer.Option("--payload", metavar="none|head", help=HEAD)]


def register(app: typer.Typer) -> None:
    """Add the groups."""
    sessions = group(app, "session", "Sessions: state, expiry and deletion.")
    add_list(sessions, "list", "session")
    sessions.command("show")(show_session)
    sessions.command("delete")(delete)
    sessions.command("expire")(expire)
    queues = group(app, "queue", "Queued messages of sessions.")
    queues.command("show")(show_queue)
    queues.command("purge")(purge_queue)


@point_options
def show_session(point: FieldView, options: Options, client_id: ClientArgument) -> None:
    """Show one session: queue, in-flight window, will, expiry and subscriptions."""
    from admin.queries import client, subscriptions

    if options.show_api:
        typer.echo(api_path("GET", "clients", client_id))
        return

    async def ask(cluster: "Cluster") -> "tuple[ClientView, list[SubscriptionListRow], tuple[MissingRows, ...]]":
        view = known(await client(cluster, client_id))
        return view, *await subscriptions(cluster, view)

    view, rows, more = with_cluster(options, ask, point.timeout_s)
    names = ("filter", "qos", "share", "no_local", "retain_as_published", "retain_handling", "identifier")
    held = [{name: getattr(row, name) for name in names} for row in rows]
    print_view(
        {"client_id": client_id, "session": fields_of(view.session), "subscriptions": held},
        view.partial + more,
        options,
        point,
    )


@asks
def delete(options: Options, client_id: ClientArgument, yes: YesOption = False, dry_run: DryOption = False) -> None:
    """Delete the session of a disconnected client with its queue and subscriptions; publishes a delayed will."""
    _end("session delete", client_id, options, yes=yes, dry_run=dry_run)


@asks
def expire(options: Options, client_id: ClientArgument, yes: YesOption = False, dry_run: DryOption = False) -> None:
    """Expire the session of a disconnected client immediately."""
    _end("session expire", client_id, options, yes=yes, dry_run=dry_run)


@asks
def purge_queue(
    options: Options, client_id: ClientArgument, yes: YesOption = False, dry_run: DryOption = False
) -> None:
    """Delete the queue of a session; in-flight messages of a connected client stay."""
    _end("queue purge", client_id, options, yes=yes, dry_run=dry_run)


def _end(verb: str, client_id: str, options: Options, *, yes: bool, dry_run: bool) -> None:
    """Print the data that would be lost; proceed with --yes."""
    from conf.errors import ExitCode, UserError

    if options.show_api:
        show_nodes(verb, {"client_id": client_id, "dry_run": dry_run}, options)
    if dry_run or not yes:
        show_nodes(verb, {"client_id": client_id, "dry_run": True}, options)
        if not dry_run:
            raise UserError(
                f"`{verb} {client_id[:64]}` deletes this permanently; repeat the command with --yes", ExitCode.USAGE
            )
        return
    show_nodes(verb, {"client_id": client_id}, options)


@point_options
def show_queue(
    point: FieldView,
    options: Options,
    client_id: ClientArgument,
    payload: PayloadOption = "none",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Number of entries to show.")] = LIMIT,
) -> None:
    """Show the first entries of a session's queue, in order."""
    from admin.queries import client, queue
    from conf.errors import ExitCode, UserError

    if payload not in ("none", "head"):
        raise UserError(f"--payload {payload!r} is invalid: use none or head", ExitCode.USAGE)
    wanted = "" if payload == "none" else payload
    if options.show_api:
        typer.echo(api_path("GET", "sessions", client_id, "queue", payload=wanted, limit=limit))
        return

    async def ask(cluster: "Cluster") -> "tuple[ClientView, list[QueuedMessageRow], tuple[MissingRows, ...]]":
        view = known(await client(cluster, client_id))
        return view, *await queue(cluster, view, limit, wanted)

    view, rows, more = with_cluster(options, ask, point.timeout_s)
    total = view.session.queued if view.session is not None else None
    shown = [{name: getattr(row, name) for name in _queue_columns(wanted)} for row in rows]
    print_view({"client_id": client_id, "queued": total, "entries": shown}, view.partial + more, options, point)


def _queue_columns(payload: str) -> tuple[str, ...]:
    names = ("seq", "topic", "qos", "state", "packet", "bytes", "age_s", "expires_in_s", "origin", "share", "retain")
    return (*names, "payload") if payload else names
