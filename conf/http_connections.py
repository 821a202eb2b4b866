"""Connections of one listener, each served by a task of anycorn's; without a free descriptor, clients wait in the
backlog.

A connection has a slot in a pool (``conf/admission.py``) until one of its requests is authenticated. anycorn's own
loop, and its process, would end at the first failed accept.
"""

import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.abc
import trio
from anyio.streams.tls import TLSStream

from conf.admission import AdmissionPool, AdmissionSlot
from conf.admitted import serve_admitted

__all__ = ["HttpConnections"]

HANDSHAKE_S = 15.0
ENDED = (anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError)


class HttpConnections:
    """The connections of one listener.

    Args:
        pool: Slots of connections without an authenticated request.
    """

    def __init__(self, pool: AdmissionPool[trio.CancelScope]) -> None:
        self.pool = pool
        self._places: dict[tuple[str, int], AdmissionSlot[trio.CancelScope]] = {}  # by address and port of the client

    def authenticated(self, client: tuple[str, int]) -> None:
        """Free the slot of a connection: a request on it was authenticated."""
        place = self._places.pop(client, None)
        if place is not None:
            place.leave()

    async def serve(
        self,
        listener: socket.socket,
        serve: Callable[[Any], Awaitable[None]],
        context: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """Serve each connection until cancelled; then close the listener.

        Args:
            listener: A listening socket.
            serve: Handles and closes the stream of a connection.
            context: For TLS, called at each handshake; None: without TLS.
        """

        async def enter(accepted: trio.SocketStream, place: AdmissionSlot[trio.CancelScope]) -> None:
            try:
                client = accepted.socket.getpeername()[:2]
            except OSError:
                return  # already closed
            stream = await anyio.abc.SocketStream.from_socket(accepted.socket.detach())
            self._places[client] = place
            try:
                tls = context()
                entered = stream if tls is None else await _secured(stream, tls)
                if entered is not None:
                    await serve(entered)
            finally:
                self._places.pop(client, None)
                await anyio.aclose_forcefully(stream)

        listening = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
        await serve_admitted(listening, self.pool, trio.current_time, enter)


async def _secured(stream: Any, context: ssl.SSLContext) -> TLSStream | None:
    """Return a stream after its TLS handshake; None if that failed; not logged, because strangers can cause it."""
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
