"""The server of a node's own pages: anycorn's connection, with one send for each answer and no task beside it.

A scrape takes the loop of a node that serves clients. anycorn gives trio the head of an answer, its body and its end
one by one, takes a lock for each, and around each request ends and begins a task that waits for silence: some thirteen
turns of the loop. Here what makes up an answer leaves at once, and a connection ends by the deadline of its read.
anycorn is imported here, so this module is imported when somebody asks, behind ``conf/http1.py`` (``conf/metrics.py``).
"""

import socket
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.abc
import trio
from anycorn.app_wrappers import ASGIWrapper
from anycorn.config import Config
from anycorn.events import Closed, Event, RawData
from anycorn.protocol.h11 import H11Protocol
from anycorn.tcp_server import TCPServer
from anycorn.typing import LifespanState
from anycorn.worker_context import WorkerContext

from conf.http1 import plain_server
from conf.http_doors import serve_connections

__all__ = ["serve_pages"]

SILENCE_S = 75  # of a connection: scrapers and balancers come each 60 s or more often
SEND_S = 10.0  # for an answer to be taken
CONNECTIONS_MAX = 64  # the one that stands for the longest makes room

Application = Callable[[Any, Any, Any], Awaitable[None]]


class _NoTask:
    """anycorn's task that waits for silence: the deadline of the read does."""

    async def restart(self, *_: object) -> None:
        """Begin nothing."""

    async def stop(self) -> None:
        """End nothing."""


class _Connection(TCPServer):
    """One connection."""

    def __init__(self, application: ASGIWrapper, config: Config, context: WorkerContext, stream: Any) -> None:
        super().__init__(application, config, context, LifespanState(), stream)
        self.idle_task = _NoTask()  # type: ignore[assignment]
        self.send_lock = anyio.Lock(fast_acquire=True)
        self._unsent = bytearray()

    async def protocol_send(self, event: Event) -> None:
        """Keep a part of an answer; send all of it at its end, which has no bytes, or when the connection ends."""
        if isinstance(event, RawData):
            self._unsent += event.data
            if event.data and isinstance(self.protocol.protocol, H11Protocol):
                return
        if self._unsent:
            await self._flush()
        if isinstance(event, Closed):
            await super().protocol_send(event)

    async def _flush(self) -> None:
        """Send what there is; a client that does not take it loses its connection."""
        async with self.send_lock:
            data, self._unsent = bytes(self._unsent), bytearray()
            try:
                with trio.fail_after(SEND_S):
                    await self.stream.send(data)
            except (anyio.ClosedResourceError, anyio.BrokenResourceError, trio.TooSlowError):
                await super().protocol_send(Closed())


async def serve_pages(application: Application, listener: socket.socket) -> None:
    """Serve an ASGI application by HTTP/1.1 until cancelled; the listener is the server's from here on."""
    plain_server()
    config = Config()
    config.loglevel = "WARNING"
    config.include_server_header = False
    config.read_timeout = SILENCE_S
    context, answers = WorkerContext(None), ASGIWrapper(application)
    standing: dict[_Connection, anyio.CancelScope] = {}

    async def serve(stream: anyio.abc.SocketStream) -> None:
        connection = _Connection(answers, config, context, stream)
        if len(standing) >= CONNECTIONS_MAX:
            standing.pop(next(iter(standing))).cancel()
        with anyio.CancelScope() as standing[connection]:
            await connection.run()
        standing.pop(connection, None)

    await serve_connections(listener, serve)
