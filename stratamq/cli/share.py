"""``stratamq share ...``: shared subscriptions."""

from typing import TYPE_CHECKING, Annotated

import typer

from stratamq.cli.cluster_requests import with_cluster
from stratamq.cli.commands import group
from stratamq.cli.field_view import FieldView, api_path, point_options, print_view
from stratamq.cli.listing import add_list
from stratamq.cli.node_requests import Options

if TYPE_CHECKING:
    from admin.scatter_gather import MissingRows
    from wire.messages.topic_rows import ShareRow

__all__ = ["register"]

FilterArgument = Annotated[
    str, typer.Argument(metavar="FILTER", help="Topic filter without $share/GROUP/; default: all of the group.")
]


def register(app: typer.Typer) -> None:
    """Add the group."""
    shares = group(app, "share", "Shared subscriptions and their members.")
    add_list(shares, "list", "share")
    shares.command("show")(show)


@point_options
def show(
    point: FieldView,
    options: Options,
    name: Annotated[str, typer.Argument(metavar="GROUP")],
    topic_filter: FilterArgument = "",
) -> None:
    """Show one shared group: its members and their queues."""
    from admin.queries import share
    from conf.errors import NotFound

    if options.show_api:
        typer.echo(api_path("GET", "shares", group=name, filter=topic_filter))
        return
    parts, members, partial = with_cluster(options, lambda cluster: share(cluster, name, topic_filter), point.timeout_s)
    if not parts and not partial:
        hint = "`stratamq share list` lists the existing ones"
        raise NotFound(f"no shared group {name[:100]!r}{' with that filter' * bool(topic_filter)}: {hint}")
    filters = sorted({part.filter or "" for part in parts})
    rows = [
        {
            "client_id": member.client_id,
            "filter": of,
            "online": member.online,
            "queued": member.queued,
            "oldest_s": member.oldest_s,
            "node": member.node or None,
            "partition": member.partition if member.partition >= 0 else None,
        }
        for of, member in sorted(members, key=lambda one: (one[0], -one[1].queued, one[1].client_id))
    ]
    sections = {"group": name, "filters": filters, **_sums(parts), "members": rows}
    print_view(sections, _once(partial), options, point)


def _sums(parts: "list[ShareRow]") -> dict[str, float]:
    """Return the sums of a group's counters over edges and partitions, without unknown ones."""
    from wire.queries.clock_skew import skew_of

    names = ("members", "queued", "delivered", "redispatched")
    counted = {name: [value for part in parts if (value := getattr(part, name)) is not None] for name in names}
    sums: dict[str, float] = {name: sum(values) for name, values in counted.items() if values}
    most = [part.queued_most for part in parts if part.queued_most is not None]
    uneven = skew_of(max(most), sum(counted["queued"]), sum(counted["members"])) if most else None
    return sums if uneven is None else sums | {"skew": uneven}


def _once(partial: "tuple[MissingRows, ...]") -> "tuple[MissingRows, ...]":
    return tuple(dict.fromkeys(partial))
