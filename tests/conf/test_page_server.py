"""The server of a node's own pages: complete responses, in order, over persistent connections, and bounded."""

import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
from trio.testing import MockClock

from conf.admission import POOLS, AdmissionPool
from conf.admitted import ACCEPT_RETRY_S
from conf.metrics import Metrics
from conf.node_pages import NodePages
from conf.page_server import SEND_S, SILENCE_S, serve_pages
from tests.idle_connections import idle_connections
from tests.patience import PATIENCE_S

GET = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def served(families: int = 1) -> AsyncIterator[tuple[str, int]]:
    metrics = Metrics("edge", "e", "1")
    for number in range(families):
        metrics.gauge(f"figure_{number}", "A figure. " + "x" * 1_000 * (families > 1), lambda: 1.0)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)  # of its connections
    async with trio.open_nursery() as nursery:
        pool: AdmissionPool[trio.CancelScope] = AdmissionPool(POOLS["node_pages"], lambda *_: False)
        nursery.start_soon(serve_pages, NodePages(metrics, health_only=False).answer, listener, pool)
        yield listener.getsockname()
        nursery.cancel_scope.cancel()


@contextmanager
def without_descriptors() -> Iterator[None]:
    """Use up all descriptors of this process."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def read_answer(stream: trio.SocketStream) -> bytes:
    """Return one complete response, by its length."""
    data = bytearray()
    while b"\r\n\r\n" not in data:
        part = await stream.receive_some()
        assert part, bytes(data)
        data += part
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    while len(body) < length:
        part = await stream.receive_some()
        assert part
        body += part
    assert len(body) == length
    return head + b"\r\n\r\n" + body


async def test_response_is_one_send_on_persistent_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Head, body and end of a response each had a send, and a lock."""
    sent: list[bytes] = []
    send_all = trio.SocketStream.send_all

    async def noted(stream: trio.SocketStream, data: bytes) -> None:
        if data.startswith(b"HTTP"):
            sent.append(data)
        await send_all(stream, data)

    monkeypatch.setattr(trio.SocketStream, "send_all", noted)
    async with served() as address:
        stream = await trio.open_tcp_stream(*address)
        for number in range(1, 4):
            await stream.send_all(GET % b"/metrics")
            answer = await read_answer(stream)
            assert answer.startswith(b"HTTP/1.1 200") and b"stratamq_figure_0 1.0" in answer
            assert len(sent) == number and sent[-1] == answer


async def test_requests_that_come_together_are_answered_in_order() -> None:
    async with served() as address:
        stream = await trio.open_tcp_stream(*address)
        await stream.send_all(GET % b"/livez" + GET % b"/nothing" + GET % b"/metrics")
        data = b""
        while b"stratamq_figure_0 1.0" not in data:
            data += await stream.receive_some()
    assert [part[:3] for part in data.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /livez HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"200"),
        (b"POST /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nLong: " + b"x" * 20_000, b"431"),
        (
            b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            b"200",
        ),
    ],
)
async def test_connection_is_closed_after_response(request_: bytes, status: bytes) -> None:
    with trio.fail_after(PATIENCE_S):
        async with served() as address:
            stream = await trio.open_tcp_stream(*address)
            await stream.send_all(request_)
            answer = b""
            try:
                while part := await stream.receive_some():
                    answer += part
            except trio.BrokenResourceError:
                pass  # not completely read
    assert answer.split(b" ")[1] == status


async def test_http_2_preface_is_answered_in_http_1() -> None:
    """The protocol is never changed."""
    with trio.fail_after(PATIENCE_S):
        async with served() as address:
            stream = await trio.open_tcp_stream(*address)
            await stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            assert bytes(await stream.receive_some()).startswith(b"HTTP/1.1 404")


async def test_client_that_does_not_read_is_disconnected(autojump_clock: MockClock) -> None:
    async with served(families=300) as address:
        began = trio.current_time()
        stream = await trio.open_tcp_stream(*address)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await stream.send_all(GET % b"/metrics" + GET % b"/metrics")
        await trio.sleep(SEND_S + 1)
        data = 0
        try:
            while part := await stream.receive_some():
                data += len(part)
        except trio.BrokenResourceError:
            pass
        assert data < 300_000 and trio.current_time() - began < SILENCE_S
    assert autojump_clock


async def test_a_silent_connection_ends(autojump_clock: MockClock) -> None:
    """The limit exceeds a scraper's interval: anycorn's 5 s made each scrape a new connection."""
    async with served() as address:
        stream = await trio.open_tcp_stream(*address)
        for _ in range(2):
            await trio.sleep(SILENCE_S - 1)
            await stream.send_all(GET % b"/livez")
            assert b"ok" in await read_answer(stream)
        with trio.fail_after(SILENCE_S + 1):
            assert await stream.receive_some() == b""
    assert autojump_clock


async def test_without_descriptors_a_connection_waits() -> None:
    """The first failed accept stopped the pages, and the node with them."""
    async with served() as address:
        standing = await trio.open_tcp_stream(*address)
        await standing.send_all(GET % b"/metrics")
        await read_answer(standing)
        with socket.socket() as newcomer, without_descriptors():
            newcomer.connect(address)  # the kernel accepts it
            await trio.sleep(3 * ACCEPT_RETRY_S)
        await standing.send_all(GET % b"/metrics")
        await read_answer(standing)
        async with await trio.open_tcp_stream(*address) as stream:
            await stream.send_all(GET % b"/metrics")
            await read_answer(stream)
        await standing.aclose()


async def test_oldest_of_many_connections_is_displaced() -> None:
    """An address has its share of the slots, and its newest connections."""
    share = POOLS["node_pages"].share_max
    with trio.fail_after(PATIENCE_S):
        async with served() as address:
            streams = []
            for _ in range(share + 2):
                streams.append(await trio.open_tcp_stream(*address))
                await streams[-1].send_all(GET % b"/livez")
                assert b"ok" in await read_answer(streams[-1])
            assert [await one.receive_some() for one in streams[:2]] == [b"", b""]
            for one in streams[2:]:
                await one.send_all(GET % b"/livez")
                assert b"ok" in await read_answer(one)


@pytest.mark.parametrize("said", [b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"], ids=["silence", "half heads"])
async def test_scraper_is_served_during_idle_flood(said: bytes) -> None:
    """200 connections of other addresses, opened again when they are closed."""
    with trio.fail_after(PATIENCE_S):
        async with served() as address:
            idle = idle_connections(address, 200, [f"127.0.7.{number}" for number in range(1, 20)], said)
            await trio.to_thread.run_sync(idle.__enter__)
            try:
                for _ in range(10):
                    scraper = await trio.open_tcp_stream(*address)
                    await scraper.send_all(GET % b"/metrics")
                    assert b"figure_0" in await read_answer(scraper)
                    await scraper.aclose()
            finally:
                await trio.to_thread.run_sync(idle.__exit__, None, None, None)
