"""``stratamq gateway udp``: run a datagram node, and publish or subscribe over its protocol."""

from pathlib import Path
from typing import Annotated

import typer

from stratamq.cli.gateway_process import ReadyOption, SetOption, hand_options_on, run_gateway

__all__ = ["register"]

ConfigOption = Annotated[Path, typer.Option("--config", help="TOML file; conf/udp.toml shows every setting.")]
NodeOption = Annotated[list[str], typer.Option("--node", help="Address of a node, ip:port; repeat for fallbacks.")]
NameOption = Annotated[str, typer.Option("--name", help="Name of the key, for sealed security.")]
KeyOption = Annotated[
    Path | None, typer.Option("--key-file", help="Key of 64 hexadecimal digits, mode 0600; default: no encryption.")
]
CertificateOption = Annotated[
    Path | None, typer.Option("--certificate", help="Certificate chain of this device in PEM, for DTLS.")
]
CertificateKeyOption = Annotated[Path | None, typer.Option("--key", help="Private key of the certificate, mode 0600.")]
AuthorityOption = Annotated[Path | None, typer.Option("--authority", help="CA certificate of the nodes in PEM.")]
QosOption = Annotated[int, typer.Option("--qos", min=0, max=1, help="0 or 1.")]
GiveUpOption = Annotated[float, typer.Option("--give-up", min=1, help="Retry limit for one message in s.")]
DEFAULT = Path("conf/udp.toml")


def register(app: typer.Typer) -> None:
    """Add the group."""
    gateway = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)
    udp = typer.Typer(add_completion=False, rich_markup_mode=None)
    udp.callback(invoke_without_command=True)(run)
    udp.command("pub")(publish)
    udp.command("sub")(subscribe)
    gateway.add_typer(udp, name="udp", help="Run a datagram node for devices; publish and subscribe as a device.")
    app.add_typer(gateway, name="gateway", help="Run gateways for other protocols.")


def run(
    context: typer.Context, config: ConfigOption = DEFAULT, settings: SetOption = None, ready_fd: ReadyOption = -1
) -> None:
    """Run one datagram node in the foreground until it is stopped."""
    if hand_options_on(context):
        return
    import os

    from conf.gateway_config import load_gateway
    from conf.udp_settings import UDP_DEFAULTS, UdpSettings
    from gateways.datagrams.service import main

    kind = ("udp", UdpSettings)
    loaded = load_gateway(kind, UDP_DEFAULTS, config, environment=os.environ, flags=settings or [])
    run_gateway(lambda ready: main(loaded, ready), loaded.gateway, loaded.logs, ready_fd)


def publish(
    topic: Annotated[str, typer.Option("--topic", help="Topic name of each message.")],
    node: NodeOption,
    qos: QosOption = 1,
    name: NameOption = "",
    key_file: KeyOption = None,
    certificate: CertificateOption = None,
    key: CertificateKeyOption = None,
    authority: AuthorityOption = None,
    give_up_s: GiveUpOption = 60.0,
) -> None:
    """Publish each line of standard input; exit code 1 if a message was not distributed."""
    import sys

    from conf.errors import ExitCode
    from gateways.datagrams.messages import Code
    from gateways.datagrams.programs import ProgramIdentity, publish_lines

    known_by = ProgramIdentity(name, key_file, certificate, key, authority)
    failed = publish_lines(node, topic, qos, known_by, give_up_s)
    for outcome in failed[:10]:
        why = Code(outcome.code).name.lower() if outcome.code >= 0 else "no node responded"
        print(f"stratamq: line {outcome.ref + 1}: {why}", file=sys.stderr)
    if failed:
        print(f"stratamq: {len(failed)} lines were not distributed", file=sys.stderr)
        raise typer.Exit(ExitCode.FAILED)


def subscribe(
    topic_filter: Annotated[list[str], typer.Option("--filter", help="Topic filter; repeatable.")],
    node: NodeOption,
    qos: QosOption = 1,
    count: Annotated[int, typer.Option("--count", min=0, help="Exit after this number of messages; 0: never.")] = 0,
    name: NameOption = "",
    key_file: KeyOption = None,
    certificate: CertificateOption = None,
    key: CertificateKeyOption = None,
    authority: AuthorityOption = None,
    give_up_s: GiveUpOption = 60.0,
    relay: Annotated[bool, typer.Option("--relay", help="Receive all messages through the contacted node.")] = False,
) -> None:
    """Print the topic name and payload of each received message."""
    from gateways.datagrams.messages import DatagramPublish
    from gateways.datagrams.programs import ProgramIdentity, subscribe_and_print
    from stratamq.cli.output import printable

    def show(message: DatagramPublish) -> None:
        typer.echo(f"{printable(message.topic)} {printable(message.payload.decode(errors='replace'))}")

    known_by = ProgramIdentity(name, key_file, certificate, key, authority)
    subscribe_and_print(node, topic_filter, qos, count, known_by, give_up_s, relay, show)
