"""Unread input in the kernel of a stopped process does not count as client silence."""

import socket
import time
from typing import Any

from tests.clients.packets import connect
from tests.edge.loop.test_loop import Edge
from tests.patience import PATIENCE_S


def test_unread_input_does_not_count_as_silence(hot: Any) -> None:
    """A CONNECT arrives in time, and the process stops after its poll: the client is accepted."""
    edge = Edge(hot, -1)
    options = hot.options.ConnOptions(connect_timeout_ns=500_000_000)
    address = ("127.0.0.1", edge.port)
    with socket.create_connection(address) as client:
        clients = [client]

        def attach(_: object, fd: int) -> None:
            if len(clients) > 1:
                client.sendall(connect(b"c"))
                time.sleep(1.2)  # above the time for a CONNECT, and that between two sweeps
            edge.hot.attach(fd, 0, options, hot.descriptors.boot_ns())

        edge.handler.attach = attach
        edge.loop.run(0)
        with socket.create_connection(address) as other:
            clients.append(other)
            for _ in range(3):
                edge.loop.run(0)
            client.settimeout(PATIENCE_S)
            assert client.recv(4) == b"\x20\x02\x00\x00"
    edge.loop.close()
    edge.listener.close()


def test_busy_core_does_not_delay_reading(hot: Any) -> None:
    """The core always has work due, so no iteration waits; each still polls the sockets.

    After an empty poll the next one was half a second later: new input waited for the next heartbeat.
    """
    edge = Edge(hot, -1)

    def busy(now_ns: int) -> None:
        edge.hot.turn_end_ns = now_ns

    edge.handler.turn_end = busy  # type: ignore[method-assign]
    for _ in range(5):
        edge.loop.run(1e-9)
    with socket.create_connection(("127.0.0.1", edge.port)) as client:
        client.sendall(connect(b"c"))
        for _ in range(10):
            edge.loop.run(1e-9)
        client.setblocking(False)
        assert client.recv(4) == b"\x20\x02\x00\x00"
    edge.loop.close()
    edge.listener.close()
