"""Sockets that another process may share: their close reaches the client, and epoll reports them no longer."""

import os
from typing import Any

import trio

from tests.clients.packets import PINGREQ, connect
from tests.edge.loop.test_loop import Client, running
from tests.patience import PATIENCE_S


async def test_close_of_shared_socket_reaches_the_client(hot: Any) -> None:
    """The next connection with the same descriptor is not affected by the copy of the former one."""
    copies: list[int] = []
    numbers: list[int] = []
    async with running(hot) as edge:
        attach = edge.handler.attach
        assert attach is not None

        def shared(listener: object, fd: int) -> Any:
            copies.append(os.dup(fd))
            numbers.append(fd)
            conn = attach(listener, fd)
            edge.loop.share(fd)
            return conn

        edge.handler.attach = shared
        for turn in range(3):
            client = Client(await trio.open_tcp_stream("127.0.0.1", edge.port))
            await client.send(connect(b"c%d" % turn))
            assert (await client.packets(1))[0][0] == 0x20
            await client.send(PINGREQ)
            assert await client.packets(1) == [b"\xd0\x00"]
            await client.send(connect(b"again"))  # [MQTT-3.1.0-2]: it is closed
            with trio.fail_after(PATIENCE_S):
                while await client.stream.receive_some(100):
                    pass
            await client.stream.aclose()
    assert len(copies) == 3 and len(set(numbers)) < 3
    for copy in copies:
        os.close(copy)
