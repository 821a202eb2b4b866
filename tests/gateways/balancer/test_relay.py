"""Relayed connections: bytes both ways, half-closes, ends that do not read, and sockets that break."""

import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import trio

from gateways.balancer.relay import Pump


class Relayed:
    """One relayed connection: ``client`` and ``edge`` are its outer ends."""

    def __init__(self, pump: Pump, first: bytes = b"") -> None:
        self.ended = 0
        self.client, inner = pair()
        self.edge, outer = pair()
        pump.add(inner, outer, first, self._end)

    def _end(self) -> None:
        self.ended += 1


def pair() -> tuple[trio.SocketStream, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return trio.SocketStream(trio.socket.from_stdlib_socket(one)), other


@contextlib.asynccontextmanager
async def pumping() -> AsyncIterator[Pump]:
    pump = Pump()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump.run)
        with trio.fail_after(20):
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


async def test_bytes_go_both_ways_behind_what_comes_first() -> None:
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
async def test_a_half_close_is_kept(first: str) -> None:
    """One side has said all, the other still speaks; then both are closed."""
    async with pumping() as pump:
        one = Relayed(pump)
        done, speaks = (one.client, one.edge) if first == "client" else (one.edge, one.client)
        await done.send_all(b"last words")
        await done.send_eof()
        assert await exactly(speaks, 10) == b"last words" and await speaks.receive_some(1) == b""
        await speaks.send_all(b"and more" * 1000)
        assert await exactly(done, 8000) == b"and more" * 1000
        await speaks.send_eof()
        assert await done.receive_some(1) == b""
        await ended(one)


@pytest.mark.parametrize("closes", [False, True])
async def test_an_end_that_does_not_read_makes_the_other_wait(closes: bool) -> None:
    """Nothing is held but what is under way; nothing is lost, also when the sender closes meanwhile."""
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


async def test_a_reset_ends_both() -> None:
    async with pumping() as pump:
        one, other = Relayed(pump), Relayed(pump)
        one.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await one.client.aclose()
        with contextlib.suppress(trio.BrokenResourceError):
            assert await one.edge.receive_some(1) == b""
        await ended(one)
        await other.client.send_all(b"x")
        assert await exactly(other.edge, 1) == b"x"
