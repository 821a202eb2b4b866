"""The sum of bytes held for clients is exact after each iteration, and zero after they are served or closed."""

import select
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from tests.clients.packets import DISCONNECT, ack, connect, publish, split, subscribe
from tests.edge.loop.harness import Broker
from tests.edge.loop.test_loop import Edge

KEPT_BYTES = 160


def test_partial_packet_is_held_until_complete_or_closed(hot: Any) -> None:
    broker = Broker(hot)
    one, other = broker.client(), broker.client()
    packet = publish(b"t", b"x" * 10_000)
    broker.send(one, packet[:6_000])
    broker.send(other, packet[:100])
    assert broker.hot.held_bytes == 6_100
    broker.send(one, packet[6_000:])
    assert broker.hot.held_bytes == 100
    broker.hot.close(other)
    broker.turn()
    assert broker.hot.held_bytes == 0


def test_message_pending_for_several_clients_counts_once(hot: Any) -> None:
    broker = Broker(hot, outbound_window_max=1)
    readers = [broker.subscriber(b"t", 1) for _ in range(3)]
    publisher = broker.client()
    for number in range(1, 4):
        broker.send(publisher, publish(b"t", b"x" * 1_000, 1, number))
    for conn in (publisher, *readers):
        broker.raw(conn)
    size = len(publish(b"t", b"x" * 1_000, 1, 1))
    assert broker.hot.held_bytes == 2 * (size + KEPT_BYTES)
    first = readers.pop()
    broker.send(first, ack(0x40, 1))
    assert len(split(broker.raw(first))) == 1
    assert broker.hot.held_bytes == 2 * (size + KEPT_BYTES)  # pending for two others
    for conn in readers:
        broker.hot.close(conn)
        broker.raw(conn)
    broker.turn()
    assert broker.hot.held_bytes == size + KEPT_BYTES
    broker.hot.close(first)
    broker.turn()
    assert broker.hot.held_bytes == 0


def test_largest_holders_are_ordered_by_bytes(hot: Any) -> None:
    broker = Broker(hot)
    conns = [broker.client() for _ in range(5)]
    packet = publish(b"t", b"x" * 60_000)
    for number, conn in enumerate(conns):
        broker.send(conn, packet[: 10_000 * (number + 1)])
    assert broker.hot.largest_holders(2) == [conns[4], conns[3]]
    broker.hot.cut(conns[4], DISCONNECT)
    assert broker.hot.held_bytes == 10_000 + 20_000 + 30_000 + 40_000
    assert conns[4].closed and broker.raw(conns[4]) == DISCONNECT
    broker.turn()
    assert broker.hot.held_bytes == 100_000


def test_held_bytes_include_sockets(hot: Any) -> None:
    """Partial packets and unsent output of real connections count until these are closed."""
    edge = Edge(hot, -1)
    packet = publish(b"t", b"x" * 30_000)
    with (
        socket.create_connection(("127.0.0.1", edge.port)) as reader,
        socket.create_connection(("127.0.0.1", edge.port)) as writer,
    ):
        for client in (reader, writer):
            client.sendall(connect())
            _until(edge, partial(readable, client))
            client.recv(100)
        writer.sendall(packet[:5_000])
        _until(edge, lambda: edge.hot.held_bytes == 5_000)
        writer.sendall(packet[5_000:])
        _until(edge, lambda: edge.hot.held_bytes == 0)
        reader.sendall(subscribe(b"t"))
        _until(edge, lambda: readable(reader))
        writer.setblocking(False)
        rest = memoryview(packet * 400)  # more than the reader's socket accepts
        while len(rest) and edge.hot.held_bytes <= 100_000:
            with suppress(BlockingIOError):
                rest = rest[writer.send(rest) :]
            edge.loop.run(0)
        _until(edge, lambda: edge.hot.held_bytes > 100_000)
    _until(edge, lambda: edge.hot.held_bytes == 0)
    edge.loop.close()
    edge.listener.close()


def readable(client: socket.socket) -> bool:
    return bool(select.select([client], [], [], 0)[0])


def _until(edge: Any, met: Callable[[], bool]) -> None:
    for _ in range(5_000):
        if met():
            return
        edge.loop.run(0.001)
    raise AssertionError(f"{edge.hot.held_bytes} bytes held")
