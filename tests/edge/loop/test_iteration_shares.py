"""Earlier clients that fill an iteration leave a share of it for new input."""

import socket
from typing import Any

import pytest

from tests.clients.packets import connect, publish, split, subscribe
from tests.edge.loop.harness import Broker
from tests.edge.loop.test_loop import Edge

TURN_BYTES = 100_000
FLOODING = 20
READING = 50
FLOOD = publish(b"flood", bytes(10_000)) * 5  # each of them fills an iteration


@pytest.mark.parametrize("qos", [0, 1])
def test_new_input_is_served_beside_full_iterations(hot: Any, qos: int) -> None:
    """Its message waited until each of them had had an iteration."""
    broker = Broker(hot, iteration_bytes_max=TURN_BYTES, output_high_bytes=1 << 30)
    for _ in range(READING):
        broker.subscriber(b"flood")
    reader, honest = broker.subscriber(b"honest"), broker.client()
    flooding = [broker.client() for _ in range(FLOODING)]
    broker.hot.begin_turn(broker.now_ns)
    for conn in flooding:
        broker.hot.feed(conn, FLOOD)
    broker.hot.end_turn(broker.now_ns)
    broker.hot.begin_turn(broker.now_ns)
    broker.hot.feed(honest, publish(b"honest", b"x", qos, qos))
    broker.hot.end_turn(broker.now_ns)
    assert broker.hot.counters()["publish_in_qos0"] < FLOODING
    assert broker.take(reader) == [publish(b"honest", b"x")]


def test_all_sockets_are_read_beside_full_iterations(hot: Any) -> None:
    """Each iteration read one socket: beside 450 clients that do not read, a new client waited for 5 s."""
    edge = Edge(hot, -1, iteration_bytes_max=TURN_BYTES, output_high_bytes=1 << 30)
    clients = [socket.create_connection(("127.0.0.1", edge.port)) for _ in range(FLOODING + READING)]
    for number, each in enumerate(clients):
        each.setblocking(False)
        each.send(connect(b"c") + (subscribe(b"flood") if number >= FLOODING else b""))
    while edge.hot.counters()["packets_in"] < len(clients) + READING:
        edge.loop.run(0)
    for each in clients[:FLOODING]:
        each.send(FLOOD * 10)
    for _ in range(2 * FLOODING):
        edge.loop.run(0)
    with socket.create_connection(("127.0.0.1", edge.port)) as newcomer:
        newcomer.sendall(connect(b"new"))
        for _ in range(10):  # three; it took 42
            edge.loop.run(0)
        assert edge.hot.counters()["publish_in_qos0"] < FLOODING * 10
        newcomer.setblocking(False)
        assert split(newcomer.recv(100)) == [b"\x20\x02\x00\x00"]
    for each in clients:
        each.close()
    edge.loop.close()
    edge.listener.close()
