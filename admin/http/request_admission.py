"""Admission of every HTTP request: host, identifier, path, response headers, and concurrency limits.

Responses are never cacheable or framed, and load nothing from other hosts. A request has a slot in the pool
``admin_requests`` until its body is complete and its caller is known, then one of the callers' slots (`CallerPlaces`):
unauthenticated requests cannot use up the callers' slots. Streams and waiting requests last long and have separate
slots, so each kind blocks only itself.

The server silently closes a connection if it answers before the body is complete, and a browser would lose its next
request. Therefore a short remaining body is read before the response; otherwise the response announces the close.
"""

import enum
import logging
import math
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import ExitStack
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

import trio

from admin.http.caller_places import CallerPlaces
from admin.http.problems import Problem
from conf.admission import POOLS, AdmissionPool, AdmissionSlot, KnownAddresses
from conf.admitted import NotAdmitted, place_for
from conf.events import say
from conf.served_hosts import ServedHosts, host_text, is_for

__all__ = [
    "ADMIT",
    "SECURITY_HEADERS",
    "SLASH",
    "STREAMS_MAX",
    "WAITS_MAX",
    "RequestAdmission",
    "RequestSlot",
    "path_of",
]

logger = logging.getLogger(__name__)

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
ADMIT = "admit"  # in the state of a request: called with the authenticated caller; raises Problem (503)
LATE = BUSY.replace(b"Service Unavailable", b"Request Timeout").replace(b"503", b"408").replace(b'"busy"', b'"late"')
LATE = LATE.replace(b"as many requests as there may be are under way", b"the request, or its body, took too long")
MISDIRECTED = b'{"type":"urn:stratamq:misdirected","title":"Misdirected Request","status":421,"code":"misdirected",'
MISDIRECTED += b'"detail":"this service has no such name as the request says in Host",'
MISDIRECTED += b'"do":"ask by its address or a name of its certificate, or list the name in admin.hosts",'
MISDIRECTED += b'"request_id":""}'
SLASH = "\x00"  # occurs in no MQTT name
STREAMS_MAX = 64
WAITS_MAX = 128  # concurrent waiting requests: a followed trace needs one per edge and storage node
REST_BYTES_MAX = 64 * 1024  # of an unread body: the maximum size of a body
REST_S = 1.0  # for reading it
BODY_S = 5.0  # for a whole body
REQUEST_S = 60.0  # a change waits for at most half a minute


def path_of(raw: bytes | None, decoded: str) -> str:
    """Return a path with decoded parts; SLASH replaces a slash inside a part, as in client identifiers.

    Args:
        raw: As received; None: not provided by the server.
        decoded: As decoded by the server, which does not distinguish these slashes.
    """
    if raw is None or not any(written in raw.lower() for written in (b"%2f", b"%00")):
        return decoded
    parts = (unquote_to_bytes(part).decode("utf-8", "replace") for part in raw.split(b"/"))
    return "/".join(part.replace(SLASH, "\ufffd").replace("/", SLASH) for part in parts)


class RequestSlot(enum.Enum):
    """Duration of a request."""

    SHORT = "until it is answered"
    WAIT = "until there are events, for some seconds at most"
    STREAM = "until its page is closed"


class RequestAdmission:
    """An ASGI application around another one.

    Args:
        application: Behind the admission.
        requests_max: Concurrent short requests of known callers.
        stay_of: Returns the duration class of a path and its query.
        known: Addresses with an authenticated caller; new ones are added.
        authenticated: Called with the address and port of a connection with an authenticated request.
        hosts: Returns the names of the service; requests for others are refused. None: any.

    Attributes:
        pending: Requests without a known caller.
        refused: Requests without a free slot.
        misdirected: Requests for an unknown host.
    """

    def __init__(
        self,
        application: Application,
        requests_max: int,
        stay_of: Callable[[str, bytes], RequestSlot] = lambda *_: RequestSlot.SHORT,
        known: KnownAddresses | None = None,
        authenticated: Callable[[tuple[str, int]], None] = lambda _: None,
        hosts: Callable[[], ServedHosts | None] = lambda: None,
    ) -> None:
        self._application = application
        self._hosts = hosts
        self._places = {
            RequestSlot.SHORT: CallerPlaces(requests_max),
            RequestSlot.WAIT: CallerPlaces(WAITS_MAX),
            RequestSlot.STREAM: CallerPlaces(STREAMS_MAX),
        }
        self._stay_of = stay_of
        self._authenticated = authenticated
        self._known = KnownAddresses() if known is None else known
        self.pending: AdmissionPool[trio.CancelScope] = AdmissionPool(POOLS["admin_requests"], self._known.knows)
        self.refused = 0
        self.misdirected = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the protocol of the server's start and end."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        scope.setdefault("state", {})["request_id"] = secrets.token_hex(8)
        scope["path"] = path_of(scope.get("raw_path"), scope["path"])
        answer = _Answer(scope, _Body(scope, receive), send)
        peer = scope.get("client") or ("", 0)
        if not is_for(self._hosts(), scope):
            self.misdirected += 1
            say(logger, "admin.host_refused", host=host_text(scope), address=peer[0])
            await answer.refuse(421, MISDIRECTED)
            return
        try:
            with ExitStack() as held, place_for(self.pending, trio.current_time(), peer[0]) as place:
                scope["state"][ADMIT] = partial(self._admit, scope, place, held)
                await self._serve(scope, answer, place)
        except NotAdmitted:
            self.refused += 1
            await answer.refuse(503, BUSY)

    async def _serve(self, scope: Scope, answer: "_Answer", place: AdmissionSlot[trio.CancelScope]) -> None:
        stay = self._stay_of(scope["path"], scope.get("query_string", b""))
        with trio.move_on_after(BODY_S) as bound:
            await answer.body.read_ahead()
        if not bound.cancelled_caught:
            place.heard()
            with trio.move_on_after(math.inf if stay is RequestSlot.STREAM else REQUEST_S) as bound:
                await self._application(scope, answer.body.receive, answer.send)
        if bound.cancelled_caught:
            await answer.refuse(408, LATE)

    def _admit(self, scope: Scope, place: AdmissionSlot[trio.CancelScope], held: ExitStack, caller: str) -> None:
        """Exchange a request's unauthenticated slot for one of its caller.

        Raises:
            Problem: The caller has no free slot.
        """
        peer = scope.get("client") or ("", 0)
        self._known.add(caller, peer[0], trio.current_time())
        self._authenticated((peer[0], peer[1]))
        places = self._places[self._stay_of(scope["path"], scope.get("query_string", b""))]
        if not places.enter(caller):
            self.refused += 1
            text = "this caller has too many concurrent requests"
            raise Problem(503, "busy", text, "retry in a second", 1.0)
        held.callback(places.leave, caller)
        place.leave()


class _Answer:
    """The answer to one request."""

    def __init__(self, scope: Scope, body: "_Body", send: Send) -> None:
        self.body = body
        self._scope, self._send = scope, send
        self._begun = False

    async def send(self, message: Any, rest_s: float = REST_S) -> None:
        """Send an ASGI message, with the headers of every response."""
        self._begun = True
        if message["type"] == "http.response.start":
            if not self.body.over:
                await self.body.take_rest(rest_s)
            headers = [(name, value) for name, value in message.get("headers", ()) if name != b"server"]
            names = {name for name, _ in headers}
            headers += [pair for pair in SECURITY_HEADERS if pair[0] not in names]
            if b"cache-control" not in names:
                headers.append((b"cache-control", b"no-store"))
            headers.append((b"x-request-id", self._scope["state"]["request_id"].encode()))
            if not self.body.over:
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        await self._send(message)

    async def refuse(self, status: int, body: bytes) -> None:
        """Send a refusal, unless a response has started."""
        if self._begun:
            return
        headers = [(b"content-type", b"application/problem+json")]
        if status != 421:
            headers.append((b"retry-after", b"1"))
        await self.send({"type": "http.response.start", "status": status, "headers": headers}, rest_s=0.0)
        await self.send({"type": "http.response.body", "body": body})


class _Body:
    """The body of one request."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._ahead: deque[Any] = deque()  # messages read before the application requested them
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        self._is_long = any(not value.isdigit() or int(value[:10]) > REST_BYTES_MAX for value in lengths)
        self.over = not lengths and not any(name == b"transfer-encoding" for name, _ in scope["headers"])

    async def read_ahead(self) -> None:
        """Read the body up to the maximum size; the application refuses a longer one."""
        octets = 0
        while not self.over and not self._is_long and octets <= REST_BYTES_MAX:
            message = await self._next()
            octets += len(message.get("body", b""))
            self._ahead.append(message)

    async def receive(self) -> Any:
        """Return the next ASGI message of the server."""
        return self._ahead.popleft() if self._ahead else await self._next()

    async def _next(self) -> Any:
        message = await self._receive()
        self.over = self.over or not message.get("more_body")
        return message

    async def take_rest(self, seconds: float) -> None:
        """Read the unread rest of the body, up to the maximum size and the time limit."""
        left = REST_BYTES_MAX
        with trio.move_on_after(seconds):
            while not self.over and left > 0:
                left -= len((await self._next()).get("body", b""))
