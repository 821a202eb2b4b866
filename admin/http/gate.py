"""The gate before every request: an identifier, its path, the headers of every answer, and how many at once.

An answer is never kept by a cache, never framed, and brings nothing from elsewhere. More requests than the bound are
refused at once, so that a slow node cannot fill this process. Streams of pages and requests that wait for news are
counted apart, for they stay: each kind keeps out its own alone. The server ends a connection, without a word, whose
request is answered before its body is there: a browser would lose its next request. So what is left of a body is taken
before the answer, if it is short and comes soon; else the answer says that the connection ends.
"""

import enum
import math
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

import trio

__all__ = ["SECURITY_HEADERS", "SLASH", "STREAMS_MAX", "WAITS_MAX", "Gate", "Stay", "path_of"]

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
SLASH = "\x00"  # stands in no name of MQTT
STREAMS_MAX = 64
WAITS_MAX = 128  # requests that wait for news at once: a trace that is followed is one of each edge and storage node
REST_BYTES_MAX = 64 * 1024  # of a body that nobody read, as much as one may have
REST_S = 1.0  # for that
REQUEST_S = 60.0  # a change waits for half a minute at most, a body that trickles for a whole one


def path_of(raw: bytes | None, decoded: str) -> str:
    """Return a path whose parts are decoded, a slash inside of one as SLASH: client identifiers have such.

    Args:
        raw: As it came; None: the server does not say.
        decoded: As the server decodes it, where a slash of a part is one between parts.
    """
    if raw is None or not any(written in raw.lower() for written in (b"%2f", b"%00")):
        return decoded
    parts = (unquote_to_bytes(part).decode("utf-8", "replace") for part in raw.split(b"/"))
    return "/".join(part.replace(SLASH, "\ufffd").replace("/", SLASH) for part in parts)


class Stay(enum.Enum):
    """How long a request stays."""

    SHORT = "until it is answered"
    WAIT = "until there is news, for some seconds at most"
    STREAM = "until its page is closed"


class Gate:
    """An ASGI application around another one.

    Args:
        application: Behind the gate.
        requests_max: Short requests at once.
        stay_of: Says of a path and its query how long such a request stays.
    Attributes:
        refused: Requests that found no place.
    """

    def __init__(
        self, application: Application, requests_max: int, stay_of: Callable[[str, bytes], Stay] = lambda *_: Stay.SHORT
    ) -> None:
        self._application = application
        self._free = {Stay.SHORT: requests_max, Stay.WAIT: WAITS_MAX, Stay.STREAM: STREAMS_MAX}
        self._stay_of = stay_of
        self.refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the protocol of the server's start and end."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        scope.setdefault("state", {})["request_id"] = secrets.token_hex(8)
        scope["path"] = path_of(scope.get("raw_path"), scope["path"])

        begun = False
        body = _Body(scope, receive)

        async def answer(message: Any, rest_s: float = REST_S) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                if not body.over:
                    await body.take_rest(rest_s)
                headers = [(name, value) for name, value in message.get("headers", ()) if name != b"server"]
                names = {name for name, _ in headers}
                headers += [pair for pair in SECURITY_HEADERS if pair[0] not in names]
                if b"cache-control" not in names:
                    headers.append((b"cache-control", b"no-store"))
                headers.append((b"x-request-id", scope["state"]["request_id"].encode()))
                if not body.over:
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            await send(message)

        at_once = partial(answer, rest_s=0.0)
        stay = self._stay_of(scope["path"], scope.get("query_string", b""))
        if self._free[stay] <= 0:
            self.refused += 1
            await _refuse(at_once, 503, BUSY)
            return
        self._free[stay] -= 1
        try:
            with trio.move_on_after(math.inf if stay is Stay.STREAM else REQUEST_S) as bound:
                await self._application(scope, body.receive, answer)
        finally:
            self._free[stay] += 1
        if bound.cancelled_caught and not begun:
            await _refuse(at_once, 408, LATE)


class _Body:
    """The body of one request."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self.over = not any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])

    async def receive(self) -> Any:
        """Return the next message of the server, as ASGI has it."""
        message = await self._receive()
        self.over = self.over or not message.get("more_body")
        return message

    async def take_rest(self, seconds: float) -> None:
        """Take what nobody read, as much as a body may have and as far as it comes in time."""
        left = REST_BYTES_MAX
        with trio.move_on_after(seconds):
            while not self.over and left > 0:
                left -= len((await self.receive()).get("body", b""))


async def _refuse(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/problem+json"), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
