"""The loop on real sockets: both ways to run with trio, TLS, close, a client that does not read."""

import os
import resource
import select
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from bench.toy_broker import ToyHandler
from edge.loop.host import LoopFailed, host
from tests.clients.packets import ack, connect, publish, split, subscribe
from tests.patience import PATIENCE_S
from wire.messages.frames import HEADER
from wire.trio_epoll import trio_epoll_fd

FOREVER = 1 << 62


class Edge:
    """A listening toy broker."""

    def __init__(self, hot: Any, trio_fd: int, tls: ssl.SSLContext | None = None, **limits: Any) -> None:
        self.modules = hot
        self.handler = ToyHandler(hot)
        self.hot = hot.broker_loop.BrokerLoop(self.handler, 1, hot.options.HotLimits(**limits))
        self.handler.hot = self.hot
        self.hot.set_lease(FOREVER)
        self.loop = hot.loop.Loop(self.hot, trio_fd)
        options = hot.options.ConnOptions(tls=tls)
        self.handler.attach = lambda _, fd: self.hot.attach(fd, 0, options, hot.descriptors.boot_ns())
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.loop.listen(self.listener, None)
        self.port = self.listener.getsockname()[1]


@asynccontextmanager
async def running(hot: Any, nested: bool = False, **options: Any) -> AsyncIterator[Edge]:
    trio_fd = -1 if nested else trio_epoll_fd()
    edge = Edge(hot, trio_fd, **options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host, edge.loop, trio_fd)
        try:
            yield edge
        finally:
            nursery.cancel_scope.cancel()
    edge.loop.close()
    edge.listener.close()


class Client:
    """An MQTT client on a trio stream, packet by packet."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.data = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def packets(self, count: int) -> list[bytes]:
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    found = split(self.data)
                except (AssertionError, IndexError):
                    found = []
                if len(found) >= count:
                    self.data = b"".join(found[count:])
                    return found[:count]
                more = await self.stream.receive_some(65_536)
                assert more, "closed"
                self.data += more


async def client(edge: Edge, context: ssl.SSLContext | None = None) -> Client:
    stream: trio.abc.Stream = await trio.open_tcp_stream("127.0.0.1", edge.port)
    if context is not None:
        stream = trio.SSLStream(stream, context, server_hostname="localhost")
    it = Client(stream)
    await it.send(connect())
    assert (await it.packets(1))[0][0] == 0x20
    return it


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    command += f" -addext subjectAltName=DNS:localhost -keyout {folder}/key.pem -out {folder}/cert.pem"
    subprocess.run(command.split(), check=True, capture_output=True)
    return folder


def tls_contexts(certificates: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts of a server and of its client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    return context, ssl.create_default_context(cafile=str(certificates / "cert.pem"))


async def exchange(connected: Callable[[], Any]) -> None:
    sub, pub = await connected(), await connected()
    await sub.send(subscribe(b"t", 1))
    await sub.packets(1)
    data = [publish(b"t", b"%d" % i) for i in range(200)]
    await pub.send(b"".join(data))
    assert await sub.packets(200) == data
    await pub.send(publish(b"t", bytes(300_000), 1, 7))
    assert await pub.packets(1) == [ack(0x40, 7)]
    assert await sub.packets(1) == [publish(b"t", bytes(300_000), 1, 1)]


@pytest.mark.parametrize("nested", [False, True])
async def test_exchange(hot: Any, nested: bool) -> None:
    async with running(hot, nested) as edge:
        await exchange(lambda: client(edge))


@pytest.mark.parametrize("nested", [False, True])
async def test_exchange_under_tls(hot: Any, nested: bool, certificates: Path) -> None:
    context, trusting = tls_contexts(certificates)
    async with running(hot, nested, tls=context) as edge:
        await exchange(lambda: client(edge, trusting))


async def test_a_plain_client_on_a_tls_port_is_dropped(hot: Any, certificates: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    async with running(hot, tls=context) as edge:
        stream = await trio.open_tcp_stream("127.0.0.1", edge.port)
        await stream.send_all(connect())
        with trio.fail_after(PATIENCE_S), pytest.raises((trio.BrokenResourceError, EOFError)):
            while await stream.receive_some(1000):
                pass
            raise EOFError
        assert edge.hot.counters()["tls_failed"] == 1


async def test_idle_loop_does_not_delay_trio(hot: Any) -> None:
    """An idle loop does not delay timers, other tasks and thread results."""
    async with running(hot):
        with trio.fail_after(PATIENCE_S):
            for _ in range(5):
                await trio.sleep(0.01)
            assert await trio.to_thread.run_sync(lambda: 7) == 7
        event = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(event.wait)
            event.set()


async def test_work_that_a_handler_schedules_wakes_trio(hot: Any) -> None:
    async with running(hot) as edge:
        woken = trio.Event()
        real = edge.handler.closed

        def closed(conn: Any, why: int) -> None:
            real(conn, why)
            woken.set()
            edge.loop.kick()

        edge.handler.closed = closed  # type: ignore[method-assign]
        it = await client(edge)
        await it.stream.aclose()
        with trio.fail_after(PATIENCE_S):
            await woken.wait()


async def test_last_packet_arrives_while_client_continues_sending(hot: Any) -> None:
    """[MQTT-4.13.1-1]: half-close, no reset with unread bytes."""
    async with running(hot) as edge:
        it = await client(edge)

        def refuse(conn: Any, reason_code: int) -> None:
            edge.hot.close(conn, b"\xe0\x01" + bytes([reason_code]))

        edge.handler.error = refuse  # type: ignore[method-assign]
        await it.send(b"\x36\x05\x00\x01t\x00\x01" + publish(b"t", bytes(100_000)))
        assert await it.packets(1) == [b"\xe0\x01\x81"]
        with trio.fail_after(PATIENCE_S):
            assert await it.stream.receive_some(10) == b""
        await it.stream.aclose()


async def test_descriptor_is_freed_after_disconnect(hot: Any) -> None:
    """It receives earlier output, and its descriptor is freed although it stays connected."""
    async with running(hot) as edge:
        made: list[Any] = []
        attach: Any = edge.handler.attach
        edge.handler.attach = lambda owner, fd: made.append(attach(owner, fd))
        it = await client(edge)
        (conn,) = made
        edge.hot.write(conn, b"last")
        edge.hot.leave(conn)
        edge.loop.kick()
        with trio.fail_after(30):
            assert await it.stream.receive_some(10) == b"last"
            assert await it.stream.receive_some(10) == b""
        assert conn.fd == -1
        await it.stream.aclose()


async def test_slow_subscriber_receives_all_messages_later(hot: Any) -> None:
    async with running(hot, lag_after_ns=20_000_000_000) as edge:
        sub, pub = await client(edge), await client(edge)
        await sub.send(subscribe(b"t"))
        await sub.packets(1)
        packet = publish(b"t", bytes(10_000))
        total = 1200
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pub.send, packet * total)
            with trio.fail_after(PATIENCE_S):
                while edge.hot.counters()["parked_slow"] == 0:
                    await trio.sleep(0.01)
            got = bytearray()
            with trio.fail_after(PATIENCE_S):
                while len(got) < len(packet) * total:
                    got += await sub.stream.receive_some(1 << 20)
            assert got == packet * total
        assert edge.hot.counters()["dropped_slow"] == 0


def test_parked_client_with_more_input_wakes_the_loop_once(hot: Any) -> None:
    """Its input stays in the kernel until it is resumed, and then all of it is read."""
    edge = Edge(hot, -1)
    conns: list[Any] = []
    answer = edge.handler.packet

    def park(conn: Any, first_byte: int, body: bytes) -> None:
        conns.append(conn)
        if first_byte >> 4 == 1:
            answer(conn, first_byte, body)

    edge.handler.packet = park  # type: ignore[method-assign]
    with socket.create_connection(("127.0.0.1", edge.port)) as stream:
        stream.settimeout(PATIENCE_S)

        def has_more_input() -> bool:
            return bool(select.select([edge.loop.epoll_fd], [], [], 0)[0])

        stream.sendall(connect() + subscribe(b"t"))
        _turn_until(edge, lambda: len(conns) == 2)
        assert not has_more_input()
        stream.sendall(subscribe(b"u"))
        assert select.select([edge.loop.epoll_fd], [], [], 5)[0]
        edge.loop.run(0)
        assert not has_more_input()
        assert len(conns) == 2
        edge.hot.resume(conns[0])
        _turn_until(edge, lambda: len(conns) == 3)
    edge.loop.close()
    edge.listener.close()


def _turn_until(edge: Edge, reached: Callable[[], bool]) -> None:
    for _ in range(1000):
        if reached():
            return
        select.select([edge.loop.epoll_fd], [], [], 0.005)
        edge.loop.run(0)
    raise AssertionError("not reached")


def test_listener_pauses_without_free_descriptors_until_next_sweep(hot: Any) -> None:
    """The client waits in the backlog; its socket is nonblocking, without delay, and not inherited by children."""
    edge = Edge(hot, -1)
    taken: list[int] = []
    attach: Any = edge.handler.attach

    def note(listener: object, fd: int) -> None:
        taken.append(fd)
        attach(listener, fd)

    edge.handler.attach = note
    with socket.create_connection(("127.0.0.1", edge.port)):
        lowest_free = os.dup(edge.listener.fileno())
        os.close(lowest_free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            edge.loop.run(0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert (edge.hot.counters()["accept_failed"], taken) == (1, [])
        edge.loop.run(1.1)
        (fd,) = taken
        assert not os.get_blocking(fd)
        assert not os.get_inheritable(fd)
        accepted = socket.socket(fileno=fd)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        accepted.detach()
    edge.loop.close()
    edge.listener.close()


def test_accepted_socket_has_peer_address(hot: Any, tmp_path: Path) -> None:
    """For IPv4 and IPv6 with the port; a local socket has no address."""
    edge = Edge(hot, -1)
    seen: list[tuple[object, str, int]] = []
    ports: list[int] = []

    def note(listener: object, fd: int, address: str, port: int) -> None:
        seen.append((listener, address, port))
        os.close(fd)

    def reached(count: int) -> bool:
        return len(seen) == count

    handler: Any = edge.handler
    handler.accepted = note
    listeners = {"four": edge.listener, "six": socket.create_server(("::1", 0), family=socket.AF_INET6)}
    local = socket.socket(socket.AF_UNIX)
    local.bind(str(tmp_path / "socket"))
    local.listen()
    listeners["local"] = local
    for count, (name, listener) in enumerate(listeners.items(), 1):
        if listener is not edge.listener:
            edge.loop.listen(listener, name)
        with socket.socket(listener.family) as ours:
            ours.connect(listener.getsockname())
            ports.append(ours.getsockname()[1] if name != "local" else 0)
            _turn_until(edge, partial(reached, count))
    assert seen == [(None, "127.0.0.1", ports[0]), ("six", "::1", ports[1]), ("local", "", 0)]
    edge.loop.close()
    for listener in listeners.values():
        listener.close()


async def test_closed_connections_leave_no_state(hot: Any) -> None:
    async with running(hot) as edge:
        for _ in range(20):
            it = await client(edge)
            await it.stream.aclose()
        with trio.fail_after(PATIENCE_S):
            while edge.hot.counters()["connections"]:
                await trio.sleep(0.01)


async def test_loop_exception_is_raised_to_the_host(hot: Any) -> None:
    def explode(conn: Any, first_byte: int, body: bytes) -> None:
        raise RuntimeError("a bug", conn, first_byte, body)

    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(hot) as edge:
            edge.handler.packet = explode  # type: ignore[method-assign]
            with trio.fail_after(PATIENCE_S):
                await client(edge)
    assert caught.group_contains(LoopFailed, depth=1)


def test_trio_epoll_is_reachable_in_the_supported_version() -> None:
    async def main() -> int:
        return trio_epoll_fd()

    assert trio.run(main) >= 0


def test_under_a_mock_clock_the_loop_is_nested() -> None:
    async def main() -> int:
        return trio_epoll_fd()

    assert trio.run(main, clock=trio.testing.MockClock()) == -1


class _Masked:
    """A minimal connection filter; END ends it."""

    ended = False

    def receive(self, data: bytes) -> bytes:
        self.ended = b"END" in data
        return self.wrap(data.partition(b"END")[0])

    def wrap(self, data: bytes) -> bytes:
        return bytes(b ^ 0x55 for b in data)

    def take_output(self) -> bytes:
        return b""


async def test_stream_filter_transforms_input_and_output(hot: Any) -> None:
    async with running(hot) as edge:
        filtered = hot.options.ConnOptions(filter=_Masked())
        edge.handler.attach = lambda _, fd: edge.hot.attach(fd, 0, filtered, hot.descriptors.boot_ns())
        stream = await trio.open_tcp_stream("127.0.0.1", edge.port)
        code = _Masked()
        await stream.send_all(code.wrap(connect() + subscribe(b"t") + publish(b"t", b"x" * 70_000)))
        expected = len(b"\x20\x02\x00\x00" + b"\x90\x03\x00\x01\x00" + publish(b"t", b"x" * 70_000))
        got = b""
        with trio.fail_after(PATIENCE_S):
            while len(got) < expected:
                got += await stream.receive_some(100_000)
            assert [p[0] for p in split(code.wrap(got))] == [0x20, 0x90, 0x30]
            await stream.send_all(code.wrap(b"\xc0\x00") + b"END")  # behind a packet in one read
            assert b"".join([part async for part in stream]) in (b"", code.wrap(b"\xd0\x00"))


# -- links between two edges, each with its own loop


def _link(hot: Any, tls: tuple[Any, Any]) -> tuple[Edge, Edge, list[Any]]:
    """Return two edges with a link after manual HELLOs, run alternately by ``loop.run(0)``."""
    edges = Edge(hot, -1), Edge(hot, -1)
    peers = [edge.hot.add_peer(2 - i, "edge", 1) for i, edge in enumerate(edges)]
    for i, (edge, end) in enumerate(zip(edges, socket.socketpair(), strict=True)):
        end.setblocking(False)
        name = "localhost" if tls[i] is not None and i == 1 else None
        options = hot.options.ConnOptions(tls=tls[i], server_hostname=name)
        conn = edge.hot.attach(end.detach(), 1, options, hot.descriptors.boot_ns())

        def hello(conn: Any, payload: bytes, edge: Edge = edge, peer: Any = peers[i]) -> None:
            assert payload == b"hello"
            edge.hot.bind_link(conn, peer, 0)

        edge.handler.hello = hello  # type: ignore[method-assign]
        edge.hot.write(conn, HEADER.pack(5, 0, 0, 1, 0) + b"hello")
    return *edges, peers


@pytest.mark.parametrize("secured", [False, True])
def test_messages_cross_a_link_between_two_loops(hot: Any, secured: bool, certificates: Path) -> None:
    server = client_side = None
    if secured:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
        client_side = ssl.create_default_context(cafile=str(certificates / "cert.pem"))
    near, far, peers = _link(hot, (server, client_side))
    near.handler.extra_route = lambda topic: {"edges": (peers[0],)} if topic == b"t" else {}

    def turn(times: int = 1) -> None:
        for _ in range(times):
            near.loop.run(0)
            far.loop.run(0)

    turn(20)
    assert peers[0].conn is not None
    assert peers[1].conn is not None
    pub, sub = near.hot.attach(-1, 0, hot.options.ConnOptions(), 0), far.hot.attach(-1, 0, hot.options.ConnOptions(), 0)
    near.hot.feed(pub, connect())
    far.hot.feed(sub, connect() + subscribe(b"t", 1))
    near.hot.take_output(pub)
    far.hot.take_output(sub)
    bulk = b"".join(publish(b"t", bytes(500)) for _ in range(4000))
    got = b""
    for at in range(0, len(bulk), 50_000):
        near.hot.feed(pub, bulk[at : at + 50_000])
        turn()
        got += far.hot.take_output(sub)
    near.hot.feed(pub, publish(b"t", b"last", 1, 9))
    for _ in range(200):
        turn()
        got += far.hot.take_output(sub)
        if got.endswith(publish(b"t", b"last", 1, 1)):
            break
    assert got == bulk + publish(b"t", b"last", 1, 1)
    turn(3)
    assert near.hot.take_output(pub) == ack(0x40, 9)
    for edge in (near, far):
        edge.loop.close()
        edge.listener.close()


@pytest.mark.parametrize("secured", [False, True])
async def test_incomplete_packet_on_socket_times_out(hot: Any, secured: bool, certificates: Path) -> None:
    """The timeout runs from its first byte, not from the machine's start."""
    contexts = tls_contexts(certificates) if secured else (None, None)
    async with running(hot, tls=contexts[0]) as edge:
        it = await client(edge, contexts[1])
        await it.send(publish(b"t", b"x" * 3_000)[:100])
        with trio.fail_after(PATIENCE_S):
            while not edge.hot.counters()["held_bytes"]:
                await trio.sleep(0.01)
        now_ns = edge.modules.descriptors.boot_ns()
        edge.hot.sweep(now_ns + 5_000_000_000)
        assert edge.hot.counters()["slow_packets"] == 0
        edge.hot.sweep(now_ns + 20_000_000_000)
        assert edge.hot.counters()["slow_packets"] == 1


@pytest.mark.parametrize("secured", [False, True])
async def test_byte_rate_of_a_socket_is_limited(hot: Any, secured: bool, certificates: Path) -> None:
    """The rest stays unread in the kernel."""
    contexts = tls_contexts(certificates) if secured else (None, None)
    async with running(hot, tls=contexts[0]) as edge:
        edge.handler.session_options = {"byte_rate_max": 1_000_000.0}
        it = await client(edge, contexts[1])
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.send, publish(b"t", bytes(50_000)) * 40 + publish(b"t", b"", 1, 7))
            assert await it.packets(1) == [ack(0x40, 7)]
        assert trio.current_time() - began > 0.8  # two seconds' worth, one of them as a burst
