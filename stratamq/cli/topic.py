"""``stratamq topic ...`` and ``route show``: routed topics and their receivers."""

from typing import Annotated

import typer

from stratamq.cli.cells import fields_of
from stratamq.cli.cluster_requests import with_cluster
from stratamq.cli.commands import group
from stratamq.cli.field_view import FieldView, api_path, point_options, print_story, print_view
from stratamq.cli.listing import add_list
from stratamq.cli.node_requests import Options

__all__ = ["register"]

ROUTE = ("node", "local", "edges", "partitions", "groups", "reason_code")  # columns of an edge's route cache
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC")]
FromOption = Annotated[str, typer.Option("--from", metavar="CLIENT_ID", help="Client ID of the publisher.")]
QosOption = Annotated[int, typer.Option("--qos", min=0, max=2, help="QoS of the message.")]
BytesOption = Annotated[int, typer.Option("--bytes", min=0, max=1 << 28, help="Payload size in bytes.")]


def register(app: typer.Typer) -> None:
    """Add the groups."""
    topics = group(app, "topic", "Routed topics and their receivers.")
    add_list(topics, "list", "topic")
    topics.command("explain")(explain)
    group(app, "route", "Routes of topics.").command("show")(show_route)


@point_options
def explain(
    point: FieldView,
    options: Options,
    topic: TopicArgument,
    publisher: FromOption = "",
    qos: QosOption = 1,
    size: BytesOption = 0,
    retain: Annotated[bool, typer.Option("--retain", help="The message is retained.")] = False,
) -> None:
    """Explain the receivers of a topic, and the subscriptions that almost match."""
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
    """Show the route of a topic: owner of its shard, destinations, and edges that cache it."""
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
            group_place["partition"] = None  # members on an edge
    print_view({"topic": topic, "resolved": places, "cached": held}, partial, options, point)
