"""``stratamq retained ...``: list, read and delete retained messages.

A deletion is an empty retained message that an edge publishes like a client's, so copies, subscribers and caches agree.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from stratamq.cli.cells import fields_of
from stratamq.cli.cluster_requests import end_partial, with_cluster
from stratamq.cli.commands import asks, group
from stratamq.cli.field_view import DryOption, FieldView, YesOption, api_path, point_options, print_view
from stratamq.cli.listing import ListOptions, list_options, listed
from stratamq.cli.node_requests import Options, ask
from stratamq.cli.nouns import NOUNS
from stratamq.cli.output import OutputFormat, print_result, printable
from stratamq.cli.progress import progress_bar

if TYPE_CHECKING:
    from admin.queries import Cluster, ListResult
    from admin.scatter_gather import MissingRows
    from wire.messages.topic_rows import RetainedMessageRow

__all__ = ["register"]

PAGE = 1_000
PURGED_MAX = 1_000_000
NAMED_MAX = 10
LISTED = "`stratamq retained list` lists them"

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    retained = group(app, "retained", "Retained messages.")
    retained.command("list", help=NOUNS["retained"].text)(list_them)
    retained.command("get")(get)
    retained.command("clear")(clear)
    retained.command("purge")(purge)


@list_options
def list_them(
    query: ListOptions,
    options: Options,
    topic_filter: Annotated[str, typer.Argument(metavar="FILTER", help="Topic filter, with wildcards + and #.")] = "",
) -> None:
    """List retained messages, by partition."""
    if topic_filter:
        _check_filter(topic_filter)
    listed(NOUNS["retained"], query, options, {"matches": topic_filter} if topic_filter else {})


@point_options
def get(
    point: FieldView,
    options: Options,
    topic: TopicArgument,
    raw: Annotated[bool, typer.Option("--raw", help="Print only the payload, unmodified.")] = False,
) -> None:
    """Show the retained message of a topic with up to 200 KiB of payload; requires role operator."""
    import sys

    from conf.errors import NotFound

    if options.show_api:
        typer.echo(api_path("GET", "retained", topic=topic, payload="full"))
        return
    rows, partial = _of_topic(topic, options, point.timeout_s, payload=True)
    if not rows and not partial:
        raise NotFound(f"no retained message of topic {topic[:200]!r}: {LISTED}")
    if raw and rows:
        sys.stdout.buffer.write(rows[0].payload or b"")
        end_partial(partial, required=point.required)
        return
    print_view(fields_of(rows[0]) or {} if rows else {}, partial, options, point)


@asks
def clear(options: Options, topic: TopicArgument, yes: YesOption = False, dry_run: DryOption = False) -> None:
    """Delete the retained message of one topic; fails without changes if a node does not respond."""
    from conf.errors import UserError

    if options.show_api:
        ask("retained clear", {"topics": [topic]}, options)
    rows, partial = _of_topic(topic, options)
    end_partial(partial)  # the messages of a silent node are unknown
    if not rows:
        raise UserError(f"no retained message of topic {topic[:200]!r}: {LISTED}")
    _take_away([(row.topic or "", row.bytes or 0) for row in rows], options, yes=yes, dry_run=dry_run)


@asks
def purge(
    options: Options,
    topic_filter: Annotated[str, typer.Argument(metavar="FILTER", help="Topic filter, with wildcards + and #.")],
    yes: YesOption = False,
    dry_run: DryOption = False,
) -> None:
    """Delete the retained messages that match a filter; fails without changes if a node does not respond."""
    from conf.errors import UserError

    found, partial = _of_filter(topic_filter, options)
    end_partial(partial)  # the messages of a silent node are unknown
    if not found:
        raise UserError(f"no retained message matches {topic_filter[:200]!r}: {LISTED}")
    _take_away(found, options, yes=yes, dry_run=dry_run)


def _of_topic(
    topic: str, options: Options, timeout_s: float = 5.0, *, payload: bool = False
) -> "tuple[list[RetainedMessageRow], tuple[MissingRows, ...]]":
    from admin.explanations import check_topic
    from admin.queries import ListQuery, walk

    check_topic(topic)
    where = {"topic": topic, "matches": topic} | ({"payload": "full"} if payload else {})

    async def query(cluster: "Cluster") -> "ListResult":
        return await walk(cluster, "retained", ListQuery(where, limit=PAGE))

    found = with_cluster(options, query, timeout_s)
    return [
        row for _, row in found.rows if row.topic == topic
    ], found.partial  # the query treats an asterisk as a pattern


def _check_filter(topic_filter: str) -> None:
    """Validate a topic filter."""
    from conf.errors import ExitCode, UserError
    from mqtt.errors import MqttError
    from mqtt.topics import validate_topic_filter

    try:
        validate_topic_filter(topic_filter)
    except MqttError as error:
        raise UserError(f"{topic_filter[:200]!r} is not a valid topic filter: {error}", ExitCode.USAGE) from None


def _of_filter(topic_filter: str, options: Options) -> "tuple[list[tuple[str, int]], tuple[MissingRows, ...]]":
    """Return (topic, bytes) of each retained message that matches a filter.

    Raises:
        UserError: The filter is invalid, or matches more than a million messages.
    """
    from admin.queries import ListQuery, walk
    from conf.errors import UserError

    _check_filter(topic_filter)

    async def query(cluster: "Cluster") -> "tuple[list[tuple[str, int]], tuple[MissingRows, ...]]":
        wanted = ListQuery({"matches": topic_filter}, limit=PAGE, columns=("topic", "bytes"))
        found: dict[str, int] = {}
        partial: tuple[MissingRows, ...] = ()
        while True:
            page = await walk(cluster, "retained", wanted)
            found.update({row.topic or "": row.bytes or 0 for _, row in page.rows})
            partial = tuple(dict.fromkeys((*partial, *page.partial)))
            if not page.cursor:
                return sorted(found.items()), partial
            if len(found) > PURGED_MAX:
                raise UserError(
                    f"{topic_filter[:200]!r} matches more than {PURGED_MAX} messages: use a narrower filter"
                )
            wanted = wanted._replace(cursor=page.cursor)

    return with_cluster(options, query)


def _take_away(found: Sequence[tuple[str, int]], options: Options, *, yes: bool, dry_run: bool) -> None:
    """Print the messages and delete them with --yes, in requests of several topics.

    Raises:
        UserError: --yes is missing, or a request failed; the requests before it were applied.
    """
    from conf.errors import ExitCode, UserError

    if options.output in (OutputFormat.TABLE, OutputFormat.WIDE):
        named = ", ".join(topic for topic, _ in found[:NAMED_MAX]) + " ..." * (len(found) > NAMED_MAX)
        things = "1 retained message" if len(found) == 1 else f"{len(found)} retained messages"
        typer.echo(printable(f"{things}, {sum(size for _, size in found)} bytes: {named}"))
    if dry_run:
        if options.output not in (OutputFormat.TABLE, OutputFormat.WIDE):
            print_result([{"topic": topic, "bytes": size} for topic, size in found], options.output)
        return
    if not yes:
        raise UserError("this deletes retained messages permanently; repeat the command with --yes", ExitCode.USAGE)
    done = 0
    with progress_bar("topics") as show:
        for topics in _orders([topic for topic, _ in found]):
            reply = ask("retained clear", {"topics": topics}, options)
            if not reply.ok:
                text = f"{done} of {len(found)} were deleted; {reply.error}"
                raise UserError(text, reply.exit_code or ExitCode.FAILED)
            done += len(topics)
            show(done, len(found))
    print_result({"cleared": done}, options.output)


def _orders(topics: Sequence[str]) -> list[list[str]]:
    """Return topics in groups that each fit into one request."""
    from wire.messages.orders import SENT_BYTES_MAX, SENT_TOPICS_MAX

    orders: list[list[str]] = []
    room = 0
    for topic in topics:
        size = len(topic.encode())
        if not orders or len(orders[-1]) >= SENT_TOPICS_MAX or size > room:
            orders.append([])
            room = SENT_BYTES_MAX
        orders[-1].append(topic)
        room -= size
    return orders
