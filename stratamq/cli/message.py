"""``stratamq msg ...``: explain the delivery of a message, or send one."""

from pathlib import Path
from typing import Annotated

import typer

from stratamq.cli.cluster_requests import with_cluster
from stratamq.cli.commands import asks, group
from stratamq.cli.field_view import FieldView, api_path, point_options, print_story
from stratamq.cli.node_requests import Options, show_nodes
from stratamq.cli.sent_traced import send_traced

__all__ = ["register"]

PayloadArgument = Annotated[
    str, typer.Argument(metavar="PAYLOAD", help="Payload text; @FILE reads a file, - standard input.")
]
LEDGER = "Also search the `edge.ledger` and `storage.ledger` files on this host."
PAYLOAD_MAX = 1024 * 1024  # read limit of a file; the request's own limit is much lower


def register(app: typer.Typer) -> None:
    """Add the group."""
    messages = group(app, "msg", "Explain the delivery of a message, or send one.")
    messages.command("explain")(explain)
    messages.command("send")(send)


@point_options
def explain(
    point: FieldView,
    options: Options,
    origin: Annotated[
        str, typer.Argument(metavar="[ORIGIN]", help="Origin, as shown by queue, journal and trace.")
    ] = "",
    client_id: Annotated[str, typer.Option("--client", metavar="CLIENT_ID", help="Publisher; requires --packet.")] = "",
    packet: Annotated[
        int, typer.Option("--packet", min=0, max=65535, help="Packet identifier; requires --client.")
    ] = 0,
    session: Annotated[
        str, typer.Option("--session", metavar="CLIENT_ID", help="Session of the queue; requires --seq.")
    ] = "",
    seq: Annotated[int, typer.Option("--seq", min=-1, help="Sequence number in the queue.")] = -1,
    topic: Annotated[str, typer.Option("--topic", help="Topic name: search the queues of its subscribers.")] = "",
    publisher: Annotated[
        str, typer.Option("--from", metavar="CLIENT_ID", help="With --topic: client ID of the publisher.")
    ] = "",
    ledger: Annotated[Path | None, typer.Option("--ledger", metavar="FOLDER", help=LEDGER)] = None,
) -> None:
    """Explain the delivery of a message by origin, packet, queue entry, or topic.

    Exit code 1 if no node has records of it.
    """
    from admin.explain.message import NO_TRACE, check_origin
    from admin.explanations import by_origin, by_packet, by_sequence, check_topic, topic_explained
    from conf.errors import ExitCode, UserError

    if topic:
        check_topic(topic)
    ways = [bool(origin), bool(client_id or packet), bool(session or seq >= 0)]
    if sum(ways) > 1 or not (sum(ways) or topic):
        text = "use one of ORIGIN, --client C --packet N, --session C --seq N, or --topic T [--from C]"
        raise UserError(f"msg explain: {text}", ExitCode.USAGE)
    if (bool(client_id) != bool(packet)) or (bool(session) != (seq >= 0)):
        raise UserError("msg explain: --client requires --packet, --session requires --seq", ExitCode.USAGE)
    if origin:
        check_origin(origin)
    if options.show_api:
        if not sum(ways):
            typer.echo(api_path("GET", "topics", "explain", topic=topic, **{"from": publisher}))
            return
        query = {"origin": origin, "client": client_id, "packet": packet or "", "session": session}
        typer.echo(api_path("GET", "messages", "explain", **query, seq=seq if seq >= 0 else "", topic=topic))
        return
    if client_id:
        story = with_cluster(options, lambda cluster: by_packet(cluster, client_id, packet, ledger), point.timeout_s)
    elif session:
        story = with_cluster(options, lambda cluster: by_sequence(cluster, session, seq, ledger), point.timeout_s)
    elif origin:
        story = with_cluster(options, lambda cluster: by_origin(cluster, origin, topic, ledger), point.timeout_s)
    else:
        _, story = with_cluster(
            options, lambda cluster: topic_explained(cluster, topic, publisher=publisher), point.timeout_s
        )
    print_story(story, options, point)
    if story.cause is not None and story.cause.what == NO_TRACE:
        raise typer.Exit(ExitCode.FAILED)


@asks
def send(
    options: Options,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    payload: PayloadArgument = "",
    qos: Annotated[int, typer.Option("--qos", min=0, max=2, help="QoS of the message.")] = 1,
    retain: Annotated[bool, typer.Option("--retain", help="Retain the message.")] = False,
    expiry_s: Annotated[int, typer.Option("--expiry", min=-1, help="Message expiry interval in s; -1: none.")] = -1,
    node: Annotated[str, typer.Option("--node", help="Publish through this edge; default: any.")] = "",
    trace: Annotated[bool, typer.Option("--trace", help="Trace the message through the nodes.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the receivers.")] = False,
) -> None:
    """Publish one message; returns when every destination has it. A duplicate is possible."""
    from admin.explanations import check_topic, topic_explained
    from conf.errors import ExitCode, UserError
    from wire.messages.orders import SENT_BYTES_MAX

    check_topic(topic)
    content = _content(payload)
    if len(content) + len(topic.encode()) > SENT_BYTES_MAX:
        raise UserError(
            f"topic and payload exceed {SENT_BYTES_MAX} bytes: publish larger messages as a client", ExitCode.USAGE
        )
    if retain and not content:
        raise UserError("an empty retained message deletes the topic's one: use `retained clear`", ExitCode.USAGE)
    if dry_run:
        size = len(content)
        _, story = with_cluster(
            options, lambda cluster: topic_explained(cluster, topic, qos=qos, size=size, retain=retain)
        )
        print_story(story, options, FieldView(0, required=False))
        return
    arguments: dict[str, object] = {"topic": topic, "payload": content, "qos": qos, "retain": retain, "node": node}
    arguments |= {"expiry_s": expiry_s}
    if trace:
        send_traced(arguments, topic, options)
    else:
        show_nodes("msg send", arguments, options)


def _content(text: str) -> bytes:
    """Return a payload.

    Raises:
        UserError: The file is not readable.
    """
    import sys

    from conf.errors import ExitCode, UserError

    if text == "-":
        return sys.stdin.buffer.read(PAYLOAD_MAX)
    if not text.startswith("@"):
        return text.encode()
    try:
        with Path(text[1:]).open("rb") as file:
            return file.read(PAYLOAD_MAX)
    except OSError as error:
        raise UserError(f"{text[1:]}: {error.strerror or error}", ExitCode.USAGE) from None
