"""Tests authorization of an agent's links, and that hostile or silent peers do not affect the others."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio

from gateways.federation.events import Event, FederationLinkDown, FederationLinkUp, NeighbourFrame, Send
from gateways.federation.links import TIER_FEDERATE, FederationLinks, LinksOptions
from tests.idle_connections import idle_connections
from tests.patience import PATIENCE_S
from wire.links.authority import DevelopmentAuthority
from wire.links.connection import open_stream, wrap_tls
from wire.links.tls import CertificateFiles, link_contexts
from wire.messages.hello import LinkError, NodeIdentity, encode_hello

NOW = datetime.datetime.now(datetime.UTC)
WAIT_S = PATIENCE_S


class Site:
    """Links of one agent "m" that accepts connections, and the events for its core."""

    def __init__(
        self,
        files: CertificateFiles,
        *,
        accept: tuple[str, ...] = (),
        hello_s: float = 1.0,
        put_events: Callable[[list[Event]], None] | None = None,
        room: Callable[[], object] = lambda: None,
    ) -> None:
        self.events: list[Event] = []
        identity = NodeIdentity("f", "m", TIER_FEDERATE, 7)
        options = LinksOptions(identity, link_contexts(files), (), accept, {}, hello_s)
        self.links = FederationLinks(options, Random(1), put_events or self.events.extend, room)
        self.port = 0

    def named(self, kind: type[Event]) -> list[Any]:
        return [each for each in self.events if isinstance(each, kind)]


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DevelopmentAuthority]:
    """Return an authority of the federation, and one of another federation with the same subject."""
    made = {}
    for name in ("f", "g"):
        made[name] = DevelopmentAuthority(tmp_path_factory.mktemp(name), name, NOW, "StrataMQ federation")
    return made


@asynccontextmanager
async def running(site: Site) -> Any:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    site.port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(site.links.serve, listeners)
        yield site
        nursery.cancel_scope.cancel()


async def until(is_so: Callable[[], object]) -> None:
    with trio.fail_after(WAIT_S):
        while not is_so():
            await trio.sleep(0.005)


async def knock(port: int, files: CertificateFiles, hello: bytes) -> bytes:
    """Connect, send HELLO and the given bytes; return what is received."""
    plain = await open_stream(f"127.0.0.1:{port}")
    try:
        stream = await wrap_tls(plain, link_contexts(files).client, server_side=False)
        await stream.send_all(hello)
        with trio.fail_after(WAIT_S):
            return await stream.receive_some(65_536)
    except (OSError, LinkError, trio.BrokenResourceError):
        return b""
    finally:
        await trio.aclose_forcefully(plain)


def hello_of(name: str, federation: str = "f", tier: str = TIER_FEDERATE, incarnation: int = 5) -> bytes:
    return encode_hello(NodeIdentity(federation, name, tier, incarnation), 0, 0)


@pytest.mark.parametrize(
    ("source", "sent"),
    [("127.0.0.1", b""), ("127.0.7.1", b"\x16\x03\x01")],
    ids=["silent, of its own address", "begun, of another"],
)
async def test_neighbour_gets_in_beside_idle_connections(
    authorities: dict[str, DevelopmentAuthority], source: str, sent: bytes
) -> None:
    """200 connections, opened again when they are closed."""
    certificate = authorities["f"].node
    async with running(Site(certificate(TIER_FEDERATE, "m"))) as site:
        idle = idle_connections(("127.0.0.1", site.port), 200, (source,), sent)
        await trio.to_thread.run_sync(idle.__enter__)
        try:
            await until(lambda: site.links.handshakes.counts)
            assert await knock(site.port, certificate(TIER_FEDERATE, "b"), hello_of("b"))
            await until(lambda: site.named(FederationLinkUp))
        finally:
            await trio.to_thread.run_sync(idle.__exit__, None, None, None)


STRANGERS = [
    ("f", "edge", "b", hello_of("b", tier="edge"), (), "not of f/federate"),
    ("f", TIER_FEDERATE, "m", hello_of("m"), (), "the name of this agent"),
    ("f", TIER_FEDERATE, "b", hello_of("z"), (), "the certificate names b"),
    ("f", TIER_FEDERATE, "b", hello_of("b", federation="g"), (), "the certificate names b"),
    ("f", TIER_FEDERATE, "b", hello_of("b"), ("y",), "not in federate.accept"),
    ("f", TIER_FEDERATE, "b", b"\xff" * 4_096, (), ""),
    ("f", TIER_FEDERATE, "b", b"GET / HTTP/1.1\r\n\r\n", (), ""),
    ("g", TIER_FEDERATE, "b", hello_of("b"), (), "TLS"),
]


@pytest.mark.parametrize(
    ("authority", "tier", "name", "hello", "accept", "why"),
    STRANGERS,
    ids=[
        "another tier",
        "own name",
        "HELLO of another name",
        "HELLO of another federation",
        "not accepted",
        "noise",
        "HTTP",
        "another authority",
    ],
)
async def test_unauthorized_peers_are_refused(
    authorities: dict[str, DevelopmentAuthority],
    caplog: pytest.LogCaptureFixture,
    authority: str,
    tier: str,
    name: str,
    hello: bytes,
    accept: tuple[str, ...],
    why: str,
) -> None:
    """Each is counted and logged; no link begins, and a valid neighbour still connects."""
    caplog.set_level("INFO")
    site = Site(authorities["f"].node(TIER_FEDERATE, "m"), accept=accept)
    async with running(site):
        files = authorities[authority].node(tier, name)
        await knock(site.port, files, hello)
        await until(lambda: site.links.counts["refused"] or site.links.counts["refused_slow"])
        assert not site.named(FederationLinkUp) and site.links.up() == []
        assert why in caplog.text
        good = authorities["f"].node(TIER_FEDERATE, "y")
        assert await knock(site.port, good, hello_of("y"))
        await until(lambda: site.named(FederationLinkUp))
        assert [each.neighbour for each in site.named(FederationLinkUp)] == ["y"]


async def test_a_port_scan_costs_nothing(authorities: dict[str, DevelopmentAuthority]) -> None:
    """A connection without TLS is refused, as is one that closes at once."""
    site = Site(authorities["f"].node(TIER_FEDERATE, "m"))
    async with running(site):
        for data in (b"", b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0", bytes(100_000)):
            plain = await open_stream(f"127.0.0.1:{site.port}")
            try:
                await plain.send_all(data)
            except trio.BrokenResourceError:
                pass
            await plain.aclose()
        await until(lambda: site.links.counts["refused"] == 3)
        assert not site.named(FederationLinkUp)


async def test_an_earlier_incarnation_is_refused(authorities: dict[str, DevelopmentAuthority]) -> None:
    """A process that was replaced does not take its link back."""
    site = Site(authorities["f"].node(TIER_FEDERATE, "m"))
    files = authorities["f"].node(TIER_FEDERATE, "b")
    async with running(site):
        await knock(site.port, files, hello_of("b", incarnation=5))
        await until(lambda: len(site.named(FederationLinkDown)) == 1)
        await knock(site.port, files, hello_of("b", incarnation=4))
        await until(lambda: site.links.counts["refused"])
        assert [each.incarnation for each in site.named(FederationLinkUp)] == [5]


async def test_invalid_frames_close_the_connection(authorities: dict[str, DevelopmentAuthority]) -> None:
    """A frame of 8 MiB and more, or of unknown kind, closes it and is counted; the link may be resumed."""
    site = Site(authorities["f"].node(TIER_FEDERATE, "m"))
    files = authorities["f"].node(TIER_FEDERATE, "b")
    async with running(site):
        for number, bad in enumerate((b"\xff" * 64, b"\0" * 64)):
            plain = await open_stream(f"127.0.0.1:{site.port}")
            stream = await wrap_tls(plain, link_contexts(files).client, server_side=False)
            await stream.send_all(hello_of("b") + bad)
            await until(lambda: site.links.counts["refused_frames"] == number + 1)  # noqa: B023
            await trio.aclose_forcefully(plain)
        assert not site.named(NeighbourFrame)
        await until(lambda: len(site.named(FederationLinkDown)) == 2)
        site.links.send(Send("b", b"late", 0))
        assert site.links.counts["dropped_former_link"] == 1
