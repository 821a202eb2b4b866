"""Connections of one listener, each served by a task of anycorn's; whoever comes without a descriptor left waits.

anycorn's own loop ends with the first accept that fails, and its process with it: a client that takes all descriptors
would end a node as soon as somebody scrapes it.
"""

import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.abc
from anyio.streams.tls import TLSListener

__all__ = ["REST_S", "serve_connections"]

REST_S = 0.1  # before the next accept, where one failed: the backlog keeps who comes
HANDSHAKE_S = 15.0


async def serve_connections(
    listener: socket.socket, serve: Callable[[Any], Awaitable[None]], context: ssl.SSLContext | None = None
) -> None:
    """Serve each connection until cancelled; the listener is closed at the end.

    Args:
        listener: It listens.
        serve: Gets the stream of a connection, and ends it.
        context: For TLS.
    """
    plain = await anyio.abc.SocketListener.from_socket(listener)
    doors = TLSListener(plain, context, handshake_timeout=HANDSHAKE_S) if context is not None else plain
    async with anyio.create_task_group() as connections, doors:
        while True:
            try:
                await doors.serve(serve, connections)
            except anyio.BrokenResourceError:
                await anyio.sleep(REST_S)
