"""``stratamq client ...``: connected clients."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from stratamq.cli.cells import fields_of
from stratamq.cli.cluster_requests import say_partial, with_cluster
from stratamq.cli.commands import asks, group
from stratamq.cli.field_view import (
    ClientArgument,
    FieldView,
    api_path,
    point_options,
    print_story,
    print_view,
)
from stratamq.cli.listing import add_list, conditions, keyed
from stratamq.cli.node_requests import Options, ask, show_nodes
from stratamq.cli.nouns import NOUNS
from stratamq.cli.output import printable
from stratamq.cli.progress import progress_bar

if TYPE_CHECKING:
    from admin.queries import ClientView, Cluster
    from admin.scatter_gather import MissingRows
    from wire.messages.operators import AdminReply

__all__ = ["known", "register"]

KICKED_MAX = 1_000
NAMED_MAX = 10

REASON = "Reason code sent to MQTT 5 clients: name or number."
CHOSEN = "key=value, with wildcards * and ?; repeat to combine with AND."
TopicOption = Annotated[str, typer.Option("--topic", help="Topic name that the client expects.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    clients = group(app, "client", "Connected clients.")
    add_list(clients, "list", "client")
    clients.command("show")(show_client)
    clients.command("explain")(explain)
    clients.command("kick")(kick)


def known(view: "ClientView") -> "ClientView":
    """Return a client that a node knows, or that a silent node may know.

    Raises:
        NotFound: Every node responded, and none knows the client.
    """
    from conf.errors import NotFound

    if view.session is None and view.connection is None and not view.partial:
        hint = "`stratamq client list` and `session list` list the existing ones"
        raise NotFound(f"no session and no connection of client {view.client_id[:100]!r}: {hint}")
    return view


@point_options
def show_client(point: FieldView, options: Options, client_id: ClientArgument) -> None:
    """Show one client: its connection and its session."""
    from admin.queries import client

    if options.show_api:
        typer.echo(api_path("GET", "clients", client_id))
        return
    view = known(with_cluster(options, lambda cluster: client(cluster, client_id), point.timeout_s))
    print_view(
        {
            "client_id": client_id,
            "partition": view.partition,
            "primary": view.primary or None,
            "asked": ", ".join(view.asked),
            "connection": fields_of(view.connection),
            "session": fields_of(view.session),
        },
        view.partial,
        options,
        point,
    )


@point_options
def explain(point: FieldView, options: Options, client_id: ClientArgument, topic: TopicOption = "") -> None:
    """Explain why a client receives no messages: the first matching cause, with its values."""
    from admin.explanations import check_topic, client_explained

    if topic:
        check_topic(topic)
    if options.show_api:
        typer.echo(api_path("GET", "clients", client_id, "explain", topic=topic))
        return
    now_ms = time.time_ns() // 1_000_000
    story = with_cluster(options, lambda cluster: client_explained(cluster, client_id, now_ms, topic), point.timeout_s)
    print_story(story, options, point)


@asks
def kick(
    options: Options,
    client_id: Annotated[str, typer.Argument(metavar="[CLIENT_ID]")] = "",
    filters: Annotated[list[str] | None, typer.Option("--filter", help=CHOSEN)] = None,
    reason: Annotated[str, typer.Option("--reason", help=REASON)] = "administrative_action",
    yes: Annotated[bool, typer.Option("--yes", help="Confirm kicking all clients that match --filter.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the node of its connection.")] = False,
) -> None:
    """Disconnect a client; it may reconnect unless it is banned (`stratamq ban add`)."""
    from admin.not_found import nothing_found
    from conf.errors import ExitCode, UserError

    if bool(client_id) == bool(filters):
        raise UserError("name a client ID, or select clients with --filter", ExitCode.USAGE)
    told = _reason(reason)
    if filters:
        _kick_all(filters, told, options, yes=yes, dry_run=dry_run)
        return
    arguments = {"client_id": client_id, "reason": told, "dry_run": dry_run}
    result = show_nodes("client kick", arguments, options, only_counted=True)
    if missing := nothing_found("client kick", arguments, result):
        raise UserError(missing, ExitCode.FAILED)


def _reason(text: str) -> str:
    """Return the name of a reason code from its name or number.

    Raises:
        UserError: Operators cannot send this reason code.
    """
    from conf.errors import ExitCode, UserError
    from wire.messages.orders import KICK_REASONS

    for name, code in KICK_REASONS.items():
        if text.lower() in (name, f"0x{code:02x}", str(code)):
            return name
    known = ", ".join(f"{name} (0x{code:02X})" for name, code in KICK_REASONS.items())
    raise UserError(f"--reason {text[:64]!r}: one of {known}", ExitCode.USAGE)


def _kick_all(filters: list[str], reason: str, options: Options, *, yes: bool, dry_run: bool) -> None:
    """Print the number of matching clients and kick them one after the other.

    Raises:
        UserError: No client matches, --yes is missing, or a request failed; the clients before it were kicked.
    """
    from conf.errors import ExitCode, UserError

    chosen, partial = _chosen(filters, options)
    if not chosen:
        raise UserError(
            "no client matches --filter" + ("; some nodes did not respond" if partial else ""), ExitCode.FAILED
        )
    things = "1 client" if len(chosen) == 1 else f"{len(chosen)} clients"
    typer.echo(printable(f"{things}: {', '.join(chosen[:NAMED_MAX])}{' ...' * (len(chosen) > NAMED_MAX)}"))
    say_partial(partial)  # before any change: clients of these nodes are not included
    if dry_run:
        _end(partial)
        return
    if not yes:
        ended = "1 connection" if len(chosen) == 1 else f"{len(chosen)} connections"
        raise UserError(f"this ends {ended}: repeat the command with --yes", ExitCode.USAGE)
    with progress_bar("clients") as show:
        if options.api is not None:
            for number, client_id in enumerate(chosen):
                reply = ask("client kick", {"client_id": client_id, "reason": reason}, options)
                _went_on(reply, number, len(chosen))
                show(number + 1, len(chosen))
        else:
            with_cluster(options, lambda cluster: _kick_each(cluster, chosen, reason, show))
    typer.echo("1 client was kicked" if len(chosen) == 1 else f"{len(chosen)} clients were kicked")
    _end(partial)


async def _kick_each(cluster: "Cluster", chosen: list[str], reason: str, show: Callable[[int, int], None]) -> None:
    """Kick clients one after the other, over one link to the Raft leader.

    Raises:
        UserError: A request failed.
    """
    from admin.http.live_cluster import LiveCluster
    from admin.http.problems import Problem
    from admin.links import NodeLinks
    from conf.errors import ExitCode
    from wire.messages.operators import AdminReply

    assert isinstance(cluster.links, NodeLinks), "orders go over links"
    leader = LiveCluster(cluster.links, ())
    for number, client_id in enumerate(chosen):
        try:
            reply = await leader.ask("client kick", {"client_id": client_id, "reason": reason})
        except Problem as problem:
            reply = AdminReply(0, False, None, problem.detail, ExitCode.NOT_READY)
        _went_on(reply, number, len(chosen))
        show(number + 1, len(chosen))


def _went_on(reply: "AdminReply", done: int, total: int) -> None:
    from conf.errors import ExitCode, UserError

    if not reply.ok:
        raise UserError(f"{done} of {total} were kicked; {reply.error}", reply.exit_code or ExitCode.FAILED)


def _end(partial: "tuple[MissingRows, ...]") -> None:
    from conf.errors import ExitCode

    if partial:
        raise typer.Exit(ExitCode.PARTIAL)


def _chosen(filters: list[str], options: Options) -> "tuple[list[str], tuple[MissingRows, ...]]":
    """Return the client IDs that match a filter, KICKED_MAX at most."""
    from admin.queries import ListQuery, walk
    from conf.errors import ExitCode, UserError

    where = keyed(NOUNS["client"], conditions(filters))
    wanted = ListQuery(where, limit=KICKED_MAX + 1, columns=("client_id",))
    found = with_cluster(options, lambda cluster: walk(cluster, "clients", wanted))
    chosen = list(dict.fromkeys(row.client_id for _, row in found.rows if row.client_id))
    if len(chosen) > KICKED_MAX:
        raise UserError(f"more than {KICKED_MAX} clients match --filter: use a narrower filter", ExitCode.USAGE)
    return chosen, found.partial
