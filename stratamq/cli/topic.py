"""``stratamq topic ...`` and ``route show``: topics in use, and who gets them."""

from typing import Annotated

import typer

from stratamq.cli.cells import fields_of
from stratamq.cli.cluster_requests import with_cluster
from stratamq.cli.commands import group
from stratamq.cli.field_view import FieldView, api_path, point_options, print_story, print_view
from stratamq.cli.listing import add_list
from stratamq.cli.node_requests import Options

__all__ = ["register"]

ROUTE = ("node", "local", "edges", "partitions", "groups", "reason_code")  # columns of what an edge holds
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC")]
FromOption = Annotated[str, typer.Option("--from", metavar="CLIENT_ID", help="Who publishes it.")]
QosOption = Annotated[int, typer.Option("--qos", min=0, max=2, help="Of the message.")]
BytesOption = Annotated[int, typer.Option("--bytes", min=0, max=1 << 28, help="Of its payload.")]


def register(app: typer.Typer) -> None:
    """Add the groups."""
    topics = group(app, "topic", "Topics in use, and who gets them.")
    add_list(topics, "list", "topic")
    topics.command("explain")(explain)
    group(app, "route", "Where topics go.").command("show")(show_route)


@point_options
def explain(
    point: FieldView,
    options: Options,
    topic: TopicArgument,
    publisher: FromOption = "",
    qos: QosOption = 1,
    size: BytesOption = 0,
    retain: Annotated[bool, typer.Option("--retain", help="It is retained.")] = False,
) -> None:
    """Show who gets a topic and why, and who nearly does."""
    from admin.explanations import check_topic, topic_explained

    check_topic(topic)
    if options.show_api:
        query = {"topic": topic, "qos": qos, "from": publisher, "bytes": size or "", "retain": retain}
        typer.echo(api_path("GET", "topics", "explain", **query))
        return
    _, story = with_cluster(
        options,
        lambda cluster: topic_explained(cluster, topic, publisher=publisher, qos=qos, size=size, retain=retain),
        point.timeout_s,
    )
    print_story(story, options, point)


@point_options
def show_route(point: FieldView, options: Options, topic: TopicArgument) -> None:
    """The route of a topic: owner of its shard, destinations, and the edges that hold the answer."""
    from admin.explanations import check_topic
    from admin.queries import route

    check_topic(topic)
    if options.show_api:
        typer.echo(api_path("GET", "routes", topic=topic))
        return
    resolved, cached, partial = with_cluster(options, lambda cluster: route(cluster, topic), point.timeout_s)
    held = [
        {name: getattr(row, name) for name in ("node", "local", "edges", "partitions", "groups", "reason_code")}
        for row in cached
    ]
    places = fields_of(resolved)
    for group_place in (places or {}).get("groups", ()):
        if group_place["partition"] < 0:
            group_place["partition"] = None  # members at an edge
    print_view({"topic": topic, "resolved": places, "cached": held}, partial, options, point)
