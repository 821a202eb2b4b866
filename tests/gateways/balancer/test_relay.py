"""Relayed connections: bytes both ways, half-closes, ends that do not read or close, and sockets that break."""

import contextlib
import datetime
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from gateways.balancer import relay, tls_relay
from gateways.balancer.relay import RelayPump
from gateways.balancer.tls_relay import SecuredPump, secure
from tests.patience import PATIENCE_S
from wire.links.authority import DevelopmentAuthority


class Relayed:
    """One relayed connection: ``client`` and ``edge`` are its outer ends."""

    def __init__(self, pump: RelayPump, first: bytes = b"") -> None:
        self.ended = 0
        self.client, inner = pair()
        self.edge, outer = pair()
        self.inner = inner
        pump.add(inner, outer, first, self._end)

    def _end(self) -> None:
        self.ended += 1


def pair() -> tuple[trio.SocketStream, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return trio.SocketStream(trio.socket.from_stdlib_socket(one)), other


@contextlib.asynccontextmanager
async def pumping() -> AsyncIterator[RelayPump]:
    pump = RelayPump()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump.run)
        with trio.fail_after(PATIENCE_S):
            yield pump
        nursery.cancel_scope.cancel()


async def exactly(stream: trio.SocketStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = await stream.receive_some(count - len(data))
        assert more, data
        data += more
    return data


async def ended(one: Relayed) -> None:
    while not one.ended:
        await trio.sleep(0.001)
    assert one.ended == 1


async def test_relay_sends_first_bytes_before_both_directions() -> None:
    async with pumping() as pump:
        one = Relayed(pump, b"PROXY ")
        await one.client.send_all(b"ping")
        assert await exactly(one.edge, 10) == b"PROXY ping"
        await one.edge.send_all(b"pong")
        assert await exactly(one.client, 4) == b"pong" and len(pump) == 1
        await one.client.aclose()
        assert await one.edge.receive_some(1) == b""
        await one.edge.aclose()
        await ended(one)
        assert len(pump) == 0


@pytest.mark.parametrize("first", ["client", "edge"])
async def test_relay_half_close_is_forwarded(first: str) -> None:
    """One side has ended, the other still sends; then both are closed."""
    async with pumping() as pump:
        one = Relayed(pump)
        done, sender = (one.client, one.edge) if first == "client" else (one.edge, one.client)
        await done.send_all(b"last words")
        await done.send_eof()
        assert await exactly(sender, 10) == b"last words" and await sender.receive_some(1) == b""
        await sender.send_all(b"and more" * 1000)
        assert await exactly(done, 8000) == b"and more" * 1000
        await sender.send_eof()
        assert await done.receive_some(1) == b""
        await ended(one)


@pytest.mark.parametrize("closes", [False, True])
async def test_relay_unread_end_pauses_other_end(closes: bool) -> None:
    """Only data in flight is buffered; no byte is lost, even if the sender closes meanwhile."""
    async with pumping() as pump:
        one, other = Relayed(pump), Relayed(pump)
        data = bytes(range(256)) * 4096 * 12  # 12 MiB: more than all buffers of the kernel
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                await one.client.send_all(data)
                await (one.client.aclose() if closes else one.client.send_eof())

            nursery.start_soon(send)
            await other.client.send_all(b"not held up")
            assert await exactly(other.edge, 11) == b"not held up"
            assert await exactly(one.edge, len(data)) == data
        assert await one.edge.receive_some(1) == b""
        await one.edge.aclose()
        await ended(one)


async def test_relay_reset_closes_both_ends() -> None:
    async with pumping() as pump:
        one, other = Relayed(pump), Relayed(pump)
        one.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await one.client.aclose()
        with contextlib.suppress(trio.BrokenResourceError):
            assert await one.edge.receive_some(1) == b""
        await ended(one)
        await other.client.send_all(b"x")
        assert await exactly(other.edge, 1) == b"x"


SMALL, LAST = 4096, b"x" * 120_000  # a kernel buffer; more than it and one chunk of the relay


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait of a closed edge for its client."""
    for name, value in (("LINGER_S", 0.3), ("LINGER_CHECK_S", 0.05)):
        monkeypatch.setattr(relay, name, value)
        monkeypatch.setattr(tls_relay, name, value)


def shrink_buffers(*ends: socket.socket | trio.SocketStream) -> None:
    """Shrink the kernel buffers of an end that does not read."""
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("reads", [True, False])
async def test_relay_client_open_after_edge_is_closed_after_linger(reads: bool) -> None:
    """A silent client, and one that does not read, would hold two descriptors without limit."""
    async with pumping() as pump:
        one, other = Relayed(pump), Relayed(pump)
        if reads:
            await one.edge.aclose()
            assert await one.client.receive_some(1) == b""
        else:
            shrink_buffers(one.client, one.inner)
            await one.edge.send_all(LAST)
            await one.edge.aclose()
        await ended(one)
        assert len(pump) == 1
        await other.client.send_all(b"stays")
        await trio.sleep(0.5)
        assert await exactly(other.edge, 5) == b"stays"


@pytest.mark.usefixtures("hasty")
async def test_relay_slow_client_receives_all_bytes_of_closed_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed edge allows its client LINGER_S; an open edge has no limit."""
    monkeypatch.setattr(relay, "LINGER_S", PATIENCE_S)
    async with pumping() as pump:
        one = Relayed(pump)
        await one.edge.send_all(b"long ago")
        await trio.sleep(0.5)
        await one.edge.send_all(b", and now")
        await one.edge.aclose()
        await trio.sleep(0.1)
        assert await exactly(one.client, 17) == b"long ago, and now"


@pytest.mark.usefixtures("hasty")
async def test_tls_relay_unread_client_is_closed_after_linger(tmp_path: Path) -> None:
    authority = DevelopmentAuthority(tmp_path, "devices", datetime.datetime.now(datetime.UTC))
    shown = authority.server()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(shown.certificate, shown.key)
    outer, inner = pair()
    edge, plain = pair()
    shrink_buffers(outer, inner)
    client = trio.SSLStream(
        outer, ssl.create_default_context(cafile=str(authority.certificate)), server_hostname="localhost"
    )
    pump, ended_event = SecuredPump(), trio.Event()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                inner.setblocking(False)
                await pump.relay(await secure(inner, context), plain, b"first ")
                ended_event.set()

            nursery.start_soon(pump.run)
            nursery.start_soon(serve)
            await client.do_handshake()
            await client.send_all(b"ping")
            assert await exactly(edge, 10) == b"first ping" and len(pump) == 1
            await edge.send_all(LAST)
            await edge.aclose()
            await ended_event.wait()
            assert len(pump) == 0
            nursery.cancel_scope.cancel()
