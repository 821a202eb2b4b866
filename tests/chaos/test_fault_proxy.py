"""Each fault of the proxy, seen from both ends of a link."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.chaos.fault_control import ControlClient, command, parse_link, serve_control
from tests.chaos.fault_proxy import FaultProxy, TcpFaultProxy, UdpFaultProxy
from tests.chaos.faults import Direction, Faults, UnknownFault, damaged, datagram_delays_s
from tests.patience import PATIENCE_S

SILENCE_S = 0.1  # wait for the absence of data


class Link:
    """A client and a server stream with a proxy between them."""

    def __init__(self, proxy: TcpFaultProxy, nursery: trio.Nursery, server_ends: trio.MemoryReceiveChannel[Any]):
        self.proxy, self._nursery, self.server_ends = proxy, nursery, server_ends

    async def connect(self) -> tuple[trio.SocketStream, trio.SocketStream]:
        """Return both ends of a connection that is known to be up: the proxy has carried a byte."""
        client = await trio.open_tcp_stream("127.0.0.1", self.proxy.port)
        server: trio.SocketStream = await self.server_ends.receive()
        await client.send_all(b"!")
        await receive(server, 1)
        return client, server


@asynccontextmanager
async def tcp_link(seed: int = 1) -> AsyncIterator[Link]:
    send, receive = trio.open_memory_channel[trio.SocketStream](16)

    async def hand_over(stream: trio.SocketStream) -> None:
        await send.send(stream)
        await trio.sleep_forever()  # the stream lives until the test ends

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    proxy = TcpFaultProxy(listeners[0].socket.getsockname(), seed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, hand_over, listeners)
        await nursery.start(proxy.run)
        with trio.fail_after(PATIENCE_S):
            yield Link(proxy, nursery, receive)
        nursery.cancel_scope.cancel()


async def receive(stream: trio.SocketStream, count: int) -> bytes:
    data = b""
    with trio.fail_after(PATIENCE_S):
        while len(data) < count and (part := await stream.receive_some(count - len(data))):
            data += part
    return data


async def silent(stream: trio.SocketStream) -> bool:
    with trio.move_on_after(SILENCE_S):
        await stream.receive_some(1)
        return False
    return True


async def test_healthy_link_carries_both_directions_and_eof() -> None:
    async with tcp_link() as link:
        client, server = await link.connect()
        await client.send_all(b"ping" * 1000)
        assert await receive(server, 4000) == b"ping" * 1000
        await server.send_all(b"pong")
        assert await receive(client, 4) == b"pong"
        await client.send_eof()
        assert await receive(server, 1) == b""
        await server.send_all(b"late")  # half closed: the other direction stays open
        assert await receive(client, 4) == b"late"


async def test_delay_and_jitter_keep_order() -> None:
    async with tcp_link() as link:
        client, server = await link.connect()
        link.proxy.to_server.set(delay_s=0.05, jitter_s=0.05)
        start = trio.current_time()
        for number in range(10):
            await client.send_all(bytes([number]))
            await trio.sleep(0.002)
        assert await receive(server, 10) == bytes(range(10))
        assert trio.current_time() - start >= 0.05
        link.proxy.to_server.set(delay_s=PATIENCE_S)
        await server.send_all(b"x")  # the other direction is not slowed
        start = trio.current_time()
        assert await receive(client, 1) == b"x"
        assert trio.current_time() - start < PATIENCE_S


async def test_stall_delays_later_chunks() -> None:
    """Like TCP after a loss: a chunk waits longer, and the stream behind it."""
    async with tcp_link() as link:
        client, server = await link.connect()
        link.proxy.to_server.set(stall=1.0, stall_min_s=0.2, stall_max_s=0.2)
        start = trio.current_time()
        await client.send_all(b"first")
        await trio.sleep(0.05)
        link.proxy.to_server.set(stall=0.0)
        await client.send_all(b"then")
        assert await receive(server, 9) == b"firstthen"
        assert trio.current_time() - start >= 0.2


async def test_one_way_hold_passes_other_direction_and_loses_no_byte() -> None:
    async with tcp_link() as link:
        client, server = await link.connect()
        link.proxy.to_server.set(hold=True)
        await client.send_all(b"ping")
        await server.send_all(b"pong")
        assert await receive(client, 4) == b"pong"
        assert await silent(server)
        link.proxy.heal()
        assert await receive(server, 4) == b"ping"


async def test_cut_link_connects_after_heal() -> None:
    async with tcp_link() as link:
        link.proxy.cut()
        client = await trio.open_tcp_stream("127.0.0.1", link.proxy.port)
        await client.send_all(b"ping")
        assert await silent(client)
        link.proxy.heal()
        with trio.fail_after(PATIENCE_S):
            server = await link.server_ends.receive()
        assert await receive(server, 4) == b"ping"


async def test_dropped_bytes_reset_stream_at_heal() -> None:
    async with tcp_link() as link:
        client, server = await link.connect()
        link.proxy.to_server.set(drop=True)
        await client.send_all(b"ping")
        assert await silent(server)
        assert link.proxy.stats()["to_server.dropped_bytes"] == 4
        link.proxy.heal()
        for stream in (client, server):
            with trio.fail_after(PATIENCE_S), pytest.raises(trio.BrokenResourceError):
                await stream.receive_some(1)


async def test_reset_reaches_both_ends() -> None:
    async with tcp_link() as link:
        client, server = await link.connect()
        link.proxy.reset()
        for stream in (client, server):
            with trio.fail_after(PATIENCE_S), pytest.raises(trio.BrokenResourceError):
                await stream.receive_some(1)


async def test_half_open_is_silent_to_client_and_closed_to_server() -> None:
    async with tcp_link() as link:
        client, server = await link.connect()
        link.proxy.half_open()
        with trio.fail_after(PATIENCE_S), pytest.raises(trio.BrokenResourceError):
            await server.receive_some(1)
        await client.send_all(b"anybody there")
        assert await silent(client)
        link.proxy.heal()
        with trio.fail_after(PATIENCE_S), pytest.raises(trio.BrokenResourceError):
            await client.receive_some(1)


async def test_proxy_that_stops_reading_fills_sender_buffers() -> None:
    async with tcp_link() as link:
        client, server = await link.connect()
        link.proxy.to_server.set(stop_reading=True)
        sent = 0
        with trio.move_on_after(0.3):
            while True:
                await client.send_all(b"x" * 65_536)
                sent += 65_536
        assert sent < 16 << 20  # the kernel's buffers only
        link.proxy.heal()
        assert len(await receive(server, sent)) == sent


async def test_held_bytes_are_bounded() -> None:
    """A hold keeps reading up to its limit; then the sender waits."""
    async with tcp_link() as link:
        client, _ = await link.connect()
        link.proxy.to_server.set(hold=True)
        with trio.move_on_after(0.5) as patience:
            for _ in range(1_000):
                await client.send_all(b"x" * 65_536)
        assert patience.cancelled_caught


async def test_byte_budget_cuts_within_a_packet() -> None:
    async with tcp_link() as link:
        client, server = await link.connect()
        link.proxy.to_server.set(byte_budget=3)
        await client.send_all(b"packet")
        assert await receive(server, 3) == b"pac"
        assert await silent(server)
        link.proxy.to_server.set(byte_budget=None)
        assert await receive(server, 3) == b"ket"
        link.proxy.to_server.set(byte_budget=2, reset_at_budget=True)
        await client.send_all(b"packet")
        with trio.fail_after(PATIENCE_S), pytest.raises(trio.BrokenResourceError):
            while True:
                assert await server.receive_some(2)


async def test_slow_link_limits_rate() -> None:
    async with tcp_link() as link:
        client, server = await link.connect()
        link.proxy.to_server.set(bytes_per_s=20_000.0)
        start = trio.current_time()
        await client.send_all(b"x" * 1_000)
        await client.send_eof()
        assert await receive(server, 1_001) == b"x" * 1_000
        assert trio.current_time() - start >= 0.05


async def test_closed_target_port_resets_client() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        proxy = TcpFaultProxy(probe.getsockname(), seed=1)  # bound, not listening
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.run)
            client = await trio.open_tcp_stream("127.0.0.1", proxy.port)
            with trio.fail_after(PATIENCE_S), pytest.raises(trio.BrokenResourceError):
                await client.receive_some(1)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def udp_link(seed: int) -> AsyncIterator[tuple[UdpFaultProxy, Any, Any]]:
    server = trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client = trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with server, client:
        await server.bind(("127.0.0.1", 0))
        proxy = UdpFaultProxy(server.getsockname(), seed)
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.run)
            await client.connect(("127.0.0.1", proxy.port))
            with trio.fail_after(PATIENCE_S):
                yield proxy, client, server
            nursery.cancel_scope.cancel()


async def datagrams(server: Any, wait_s: float = 0.2) -> list[int]:
    """Return the numbers of all datagrams that arrive before it is quiet for a while."""
    arrived = []
    while True:
        with trio.move_on_after(wait_s) as scope:
            arrived.append(int(await server.recv(100)))
        if scope.cancelled_caught:
            return arrived


async def send_numbers(client: Any, count: int) -> None:
    for number in range(count):
        await client.send(str(number).encode())
        if number % 20 == 19:
            await trio.sleep(0.001)  # the receive buffers of loopback are finite


async def test_datagrams_and_replies_pass() -> None:
    async with udp_link(1) as (_proxy, client, server):
        await send_numbers(client, 50)
        assert sorted(await datagrams(server)) == list(range(50))
        await client.send(b"hello")
        data, sender = await server.recvfrom(100)
        await server.sendto(b"answer", sender)
        with trio.fail_after(PATIENCE_S):
            assert (data, await client.recv(100)) == (b"hello", b"answer")


async def test_loss_is_the_same_for_the_same_seed() -> None:
    outcomes = []
    for seed in (5, 5, 6):
        async with udp_link(seed) as (proxy, client, server):
            proxy.to_server.set(loss=0.3)
            await send_numbers(client, 200)
            outcomes.append(sorted(await datagrams(server)))
    assert outcomes[0] == outcomes[1] != outcomes[2]
    assert 100 < len(outcomes[0]) < 180


async def test_duplication_and_reordering() -> None:
    async with udp_link(3) as (proxy, client, server):
        proxy.to_server.set(duplicate=0.2)
        await send_numbers(client, 100)
        arrived = await datagrams(server)
        assert set(arrived) == set(range(100))
        assert 105 < len(arrived) < 140
        proxy.heal()
        proxy.to_server.set(reorder=0.2, reorder_s=0.02)
        await send_numbers(client, 100)
        arrived = await datagrams(server)
        assert sorted(arrived) == list(range(100))
        assert arrived != sorted(arrived)


async def test_cut_udp_link_loses_and_delayed_one_waits() -> None:
    async with udp_link(3) as (proxy, client, server):
        proxy.cut()
        await send_numbers(client, 5)
        assert await datagrams(server, 0.1) == []
        proxy.heal()
        proxy.to_server.set(delay_s=0.05)
        start = trio.current_time()
        await client.send(b"7")
        assert int(await server.recv(100)) == 7
        assert trio.current_time() - start >= 0.05


def test_random_draws_of_one_fault_do_not_shift_another() -> None:
    lossy, both = Faults(loss=0.5), Faults(loss=0.5, duplicate=0.5, reorder=0.5)
    one, two = random.Random(1), random.Random(1)
    for _ in range(100):
        assert bool(datagram_delays_s(lossy, one)) == bool(datagram_delays_s(both, two))


def test_damage_flips_one_bit() -> None:
    rng = random.Random(1)
    data = bytes(100)
    altered = damaged(data, Faults(flip=1.0), rng)
    assert sum(byte.bit_count() for byte in altered) == 1
    assert damaged(data, Faults(), rng) == data


@pytest.mark.parametrize("wrong", [{"colour": 1}, {"loss": 1.5}, {"delay_s": -1}, {"delay_s": "x"}, {"hold": None}])
def test_invalid_faults_change_no_state(wrong: dict[str, Any]) -> None:
    direction = Direction()
    with pytest.raises(UnknownFault):
        direction.set(**wrong)
    assert direction.faults == Faults()


async def test_orders_over_the_control_socket(tmp_path: Path) -> None:
    links: dict[str, FaultProxy] = {
        name: parse_link(f"tcp:{name}:127.0.0.1:0:127.0.0.1:9", seed=1)[0] for name in ("a-b", "b-a")
    }
    path = tmp_path / "control.sock"

    def give_orders() -> dict[str, Any]:
        with ControlClient(path) as order:
            order(link="a-b", do="set", direction="to_server", delay_s=0.5)
            order(do="set", jitter_s=0.25)
            for wrong in ({"link": "x", "do": "cut"}, {"do": "explode"}, {"do": "cut", "delay_s": 1}):
                with pytest.raises(UnknownFault):
                    order(**wrong)
            return order(do="stats")

    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, links, path)
        answer = await trio.to_thread.run_sync(give_orders)
        nursery.cancel_scope.cancel()
    assert set(answer["stats"]) == {"a-b", "b-a"}
    assert links["a-b"].to_server.faults == Faults(delay_s=0.5, jitter_s=0.25)
    assert links["b-a"].to_client.faults == Faults(jitter_s=0.25)
    command(links, {"do": "heal"})
    assert links["a-b"].to_server.faults == Faults()


@pytest.mark.parametrize("text", ["", "tcp:a:b", "ftp:a:127.0.0.1:1:127.0.0.1:2"])
def test_invalid_links_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_link(text, seed=1)
