"""TLS between two nodes over loopback: delivered bytes, and all kinds of ends."""

import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.patience import PATIENCE_S
from wire.links.authority import DevelopmentAuthority
from wire.links.tls import link_contexts, peer_identity
from wire.links.tls_stream import TlsStream


class Cable:
    """Forwards bytes between two sockets; may cut or corrupt them."""

    def __init__(self) -> None:
        self.spoil = False
        self.keep: int | None = None  # forwarded bytes of the next piece; then it closes

    async def carry(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        async for piece in source:
            data = bytes(piece)
            if self.spoil:
                data = data[:-1] + bytes((data[-1] ^ 1,))
            await target.send_all(data[: self.keep])
            if self.keep is not None:
                break
        await target.send_eof()


@asynccontextmanager
async def joined(folder: Path) -> AsyncIterator[tuple[TlsStream, TlsStream, Cable]]:
    """Two nodes after their handshake, with a cable from the first to the second."""
    authority = DevelopmentAuthority(folder / "tls", "test", datetime.datetime.now(datetime.UTC))
    contexts = [link_contexts(authority.node(tier, f"{tier}-0")) for tier in ("storage", "router")]
    cable = Cable()
    async with trio.open_nursery() as nursery:

        async def accepted(listener: trio.SocketListener) -> trio.SocketStream:
            return await listener.accept()

        pairs = []
        for _ in range(2):
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            near = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
            pairs.append((near, await accepted(listener)))
            await listener.aclose()
        nursery.start_soon(cable.carry, pairs[0][1], pairs[1][0])
        nursery.start_soon(Cable().carry, pairs[1][0], pairs[0][1])
        first = TlsStream(pairs[0][0], contexts[0].client, server_side=False)
        second = TlsStream(pairs[1][1], contexts[1].server, server_side=True)
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as handshakes:
                handshakes.start_soon(first.do_handshake)
                handshakes.start_soon(second.do_handshake)
            yield first, second, cable
        nursery.cancel_scope.cancel()


async def test_tls_stream_delivers_more_than_a_socket_buffer(tmp_path: Path) -> None:
    """In both directions at once, in order, and no read exceeds the requested length."""
    data = bytes(range(256)) * 40_000

    async def receive(stream: TlsStream) -> None:
        got = bytearray()
        while len(got) < len(data):
            piece = await stream.receive_some(100_000)
            assert 0 < len(piece) <= 100_000
            got += piece
        assert got == data

    async with joined(tmp_path) as (first, second, _):
        assert peer_identity(second) == ("test", "storage", "storage-0")
        async with trio.open_nursery() as nursery:
            for stream in (first, second):
                nursery.start_soon(receive, stream)
                nursery.start_soon(stream.send_all, data)


async def test_tls_stream_end_inside_a_record_is_an_end(tmp_path: Path) -> None:
    """The incomplete record has no bytes; receivers neither wait for the rest nor spin."""
    async with joined(tmp_path) as (first, second, cable):
        cable.keep = 20
        await first.send_all(b"frame" * 10)
        assert await second.receive_some(1000) == b""


async def test_tls_stream_corrupt_record_breaks_the_connection(tmp_path: Path) -> None:
    """None of its bytes is returned."""
    async with joined(tmp_path) as (first, second, cable):
        cable.spoil = True
        await first.send_all(b"frame")
        with pytest.raises(trio.BrokenResourceError):
            await second.receive_some(1000)


async def test_tls_stream_close_wakes_the_receiver(tmp_path: Path) -> None:
    """Closing again has no effect."""
    async with joined(tmp_path) as (first, second, _), trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await first.receive_some(1000)

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await first.aclose()
        await first.aclose()
        assert await second.receive_some(1000) == b""
