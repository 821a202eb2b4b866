"""The gate before every request: an identifier, the headers that every answer carries, and how many at once.

An answer is never kept by a cache, never framed, and brings nothing from elsewhere. More requests than the bound are
refused at once, so that a slow node cannot fill this process. Streams of pages are counted apart, for they stay.
"""

import math
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import trio

__all__ = ["SECURITY_HEADERS", "Gate"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
BUSY = b'{"type":"urn:stratamq:busy","title":"Service Unavailable","status":503,"code":"busy",'
BUSY += b'"detail":"as many requests as there may be are under way","do":"ask again in a second","request_id":""}'
LATE = BUSY.replace(b"Service Unavailable", b"Request Timeout").replace(b"503", b"408").replace(b'"busy"', b'"late"')
LATE = LATE.replace(b"as many requests as there may be are under way", b"the request took longer than a minute")
STREAMS_MAX = 64
REQUEST_S = 60.0  # a change waits for half a minute at most, a body that trickles for a whole one


class Gate:
    """An ASGI application around another one.

    Attributes:
        refused: Requests that found no place.
    """

    def __init__(self, application: Application, requests_max: int, is_stream: Callable[[str], bool]) -> None:
        self._application = application
        self._free = requests_max
        self._streams_free = STREAMS_MAX
        self._is_stream = is_stream
        self.refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the protocol of the server's start and end."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        scope.setdefault("state", {})["request_id"] = secrets.token_hex(8)

        begun = False

        async def answer(message: Any) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                headers = [(name, value) for name, value in message.get("headers", ()) if name != b"server"]
                names = {name for name, _ in headers}
                headers += [pair for pair in SECURITY_HEADERS if pair[0] not in names]
                if b"cache-control" not in names:
                    headers.append((b"cache-control", b"no-store"))
                headers.append((b"x-request-id", scope["state"]["request_id"].encode()))
                message = {**message, "headers": headers}
            await send(message)

        stream = self._is_stream(scope["path"])
        if (self._streams_free if stream else self._free) <= 0:
            self.refused += 1
            await _refuse(answer, 503, BUSY)
            return
        self._take(stream, 1)
        try:
            with trio.move_on_after(math.inf if stream else REQUEST_S) as bound:
                await self._application(scope, receive, answer)
        finally:
            self._take(stream, -1)
        if bound.cancelled_caught and not begun:
            await _refuse(answer, 408, LATE)

    def _take(self, stream: bool, places: int) -> None:
        if stream:
            self._streams_free -= places
        else:
            self._free -= places


async def _refuse(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/problem+json"), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
