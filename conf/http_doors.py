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
from anyio.streams.tls import TLSStream

__all__ = ["REST_S", "serve_connections"]

REST_S = 0.1  # before the next accept, where one failed: the backlog keeps who comes
HANDSHAKE_S = 15.0
ENDED = (anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError)


async def serve_connections(
    listener: socket.socket,
    serve: Callable[[Any], Awaitable[None]],
    context: Callable[[], ssl.SSLContext | None] = lambda: None,
) -> None:
    """Serve each connection until cancelled; the listener is closed at the end.

    Args:
        listener: It listens.
        serve: Gets the stream of a connection, and ends it.
        context: For TLS, asked at each handshake; None: without TLS.
    """
    doors = await anyio.abc.SocketListener.from_socket(listener)

    async def enter(stream: Any) -> None:
        tls = context()
        entered = stream if tls is None else await _secured(stream, tls)
        if entered is not None:
            await serve(entered)

    async with anyio.create_task_group() as connections, doors:
        while True:
            try:
                await doors.serve(enter, connections)
            except anyio.BrokenResourceError:
                await anyio.sleep(REST_S)


async def _secured(stream: Any, context: ssl.SSLContext) -> TLSStream | None:
    """Return a stream behind its handshake; None where that failed, without a line in the log: strangers cause it."""
    secured: TLSStream | None = None
    try:
        with anyio.fail_after(HANDSHAKE_S):
            secured = await TLSStream.wrap(stream, server_side=True, ssl_context=context)
    except (OSError, TimeoutError, *ENDED):
        pass
    finally:
        if secured is None:
            await anyio.aclose_forcefully(stream)
    return secured
