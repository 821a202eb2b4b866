"""The server of a node's own pages: anycorn's HTTP/1.1 without its tasks and streams, and one send per response.

A scrape blocks the event loop of a node with clients. anycorn uses a task for each connection, each request, and each
idle period, sends head, body and end of a response separately, and wraps trio in its own layer. A connection for a
single response took twice the time of a persistent one. Here one trio task per connection drives anycorn's protocol,
and answers the requests that it has read. anycorn is imported here, so this module is imported on demand, after
``conf/http1.py`` (``conf/metrics.py``). Decision: docs/adr/0193-one-task-for-a-page.md.
"""

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio
from anycorn.app_wrappers import ASGIWrapper
from anycorn.config import Config
from anycorn.events import Closed, Event, RawData
from anycorn.protocol import ProtocolWrapper
from anycorn.protocol.h11 import H11Protocol
from anycorn.typing import ConnectionState
from anycorn.worker_context import WorkerContext

from conf.admission import AdmissionPool, AdmissionSlot
from conf.admitted import serve_admitted
from conf.http1 import plain_server

__all__ = ["serve_pages"]

SILENCE_S = 75  # of a connection: scrapers and balancers send a request at least every 60 s
SEND_S = 10.0  # to send a response
READ_BYTES = 65_536

Application = Callable[[Any, Any, Any], Awaitable[None]]
Message = dict[str, Any]
EMPTY: Message = {"type": "http.request", "body": b"", "more_body": False}  # pages of a node read no body


class _Answers:
    """anycorn's tasks for requests: calls and awaits the application after the request has been read."""

    async def spawn_app(
        self, application: ASGIWrapper, config: Config, scope: Any, send: Callable[[Any], Awaitable[None]]
    ) -> Callable[[Message], Awaitable[None]]:
        """Return the receiver of one request's events."""
        answered = False

        async def receive() -> Message:
            return EMPTY

        async def put(message: Message) -> None:
            nonlocal answered
            if answered or message["type"] != "http.request":
                return
            answered = True
            try:
                await application(scope, receive, send, None, None)  # type: ignore[arg-type]  # starts no thread
            except Exception:
                await config.log.exception("a page failed")
            await send(None)

        return put


class _Connection:
    """One connection."""

    def __init__(self, stream: trio.SocketStream, application: ASGIWrapper, config: Config, of: WorkerContext) -> None:
        self._stream = stream
        self._unsent = bytearray()
        answers: Any = _Answers()
        self._protocol = ProtocolWrapper(
            application, config, of, answers, ConnectionState({}), None, _local(stream), self._send, None, "http/1.1"
        )

    async def run(self) -> None:
        """Answer until the client is silent or disconnected, or sends an invalid request."""
        try:
            await self._protocol.initiate()
            while data := await self._read():
                await self._protocol.handle(RawData(data))
        finally:
            self._close()

    async def _read(self) -> bytes:
        with trio.move_on_after(SILENCE_S), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            return bytes(await self._stream.receive_some(READ_BYTES))
        return b""

    async def _send(self, event: Event) -> None:
        """Buffer a part of a response; send all of it at its end event, which has no bytes, or at the end of the
        connection.
        """
        if isinstance(event, RawData):
            self._unsent += event.data
            if event.data and isinstance(self._protocol.protocol, H11Protocol):
                return
        if self._unsent:
            await self._flush()
        if isinstance(event, Closed):
            self._close()

    async def _flush(self) -> None:
        """Send the buffer; a client that does not read it is disconnected."""
        data, self._unsent = bytes(self._unsent), bytearray()
        try:
            with trio.fail_after(SEND_S):
                await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            self._close()

    def _close(self) -> None:
        with suppress(OSError):
            self._stream.socket.shutdown(socket.SHUT_WR)
        self._stream.socket.close()


def _local(stream: trio.SocketStream) -> tuple[str, int] | None:
    """Return the local address of a connection; None if it is closed."""
    try:
        host, port = stream.socket.getsockname()[:2]
    except OSError:
        return None
    return str(host), int(port)


async def serve_pages(application: Application, listener: socket.socket, pool: AdmissionPool[trio.CancelScope]) -> None:
    """Serve an ASGI application by HTTP/1.1 until cancelled; takes ownership of the listener.

    Without a free descriptor, new connections wait in the backlog.
    """
    plain_server()
    config = Config()
    config.loglevel = "WARNING"
    config.include_server_header = False
    context, answers = WorkerContext(None), ASGIWrapper(application)

    async def serve(accepted: trio.SocketStream, place: AdmissionSlot[trio.CancelScope]) -> None:
        del place  # these pages have no authentication
        try:
            await _Connection(accepted, answers, config, context).run()
        except Exception:
            await config.log.exception("a connection to a page failed")

    listening = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
    await serve_admitted(listening, pool, trio.current_time, serve)
