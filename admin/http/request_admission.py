"""The gate before every request: its host, an identifier, its path, the headers of every answer, and how many at once.

An answer is never kept by a cache, never framed, and brings nothing from elsewhere. A request has a place in the pool
``admin_requests`` until its body is complete and its caller is known, and then a place among those of callers
(`CallerPlaces`): requests without credentials cannot use up the places of callers. Streams of pages and requests that
wait for news have places of their own, because they last: each kind keeps out its own alone.

The server ends a connection, without a word, whose request is answered before its body is there: a browser would lose
its next request. So what is left of a body is taken before the answer, if it is short and comes soon; else the answer
says that the connection ends.
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
ADMIT = "admit"  # in the state of a request: called with its caller when that is known; raises Problem (503)
LATE = BUSY.replace(b"Service Unavailable", b"Request Timeout").replace(b"503", b"408").replace(b'"busy"', b'"late"')
LATE = LATE.replace(b"as many requests as there may be are under way", b"the request, or its body, took too long")
MISDIRECTED = b'{"type":"urn:stratamq:misdirected","title":"Misdirected Request","status":421,"code":"misdirected",'
MISDIRECTED += b'"detail":"this service has no such name as the request says in Host",'
MISDIRECTED += b'"do":"ask by its address or a name of its certificate, or list the name in admin.hosts",'
MISDIRECTED += b'"request_id":""}'
SLASH = "\x00"  # stands in no name of MQTT
STREAMS_MAX = 64
WAITS_MAX = 128  # requests that wait for news at once: a trace that is followed is one of each edge and storage node
REST_BYTES_MAX = 64 * 1024  # of a body that nobody read, as much as one may have
REST_S = 1.0  # for that
BODY_S = 5.0  # for a whole body
REQUEST_S = 60.0  # a change waits for half a minute at most


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


class RequestSlot(enum.Enum):
    """How long a request stays."""

    SHORT = "until it is answered"
    WAIT = "until there is news, for some seconds at most"
    STREAM = "until its page is closed"


class RequestAdmission:
    """An ASGI application around another one.

    Args:
        application: Behind the gate.
        requests_max: Short requests of known callers at once.
        stay_of: Says of a path and its query how long such a request stays.
        known: Addresses from which somebody authenticated; it is told of more.
        authenticated: Called with the address and port of a connection that made a request of a known caller.
        hosts: Returns the names of the service; requests for others are refused. None: any.

    Attributes:
        pending: Requests whose caller is not known.
        refused: Requests that found no place.
        misdirected: Requests for a host that is no name of the service.
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
        """Exchange the place of a request without a caller for one of its caller's.

        Raises:
            Problem: The caller has as many as are free.
        """
        peer = scope.get("client") or ("", 0)
        self._known.add(caller, peer[0], trio.current_time())
        self._authenticated((peer[0], peer[1]))
        places = self._places[self._stay_of(scope["path"], scope.get("query_string", b""))]
        if not places.enter(caller):
            self.refused += 1
            text = "this caller has as many requests under way as it may"
            raise Problem(503, "busy", text, "ask again in a second", 1.0)
        held.callback(places.leave, caller)
        place.leave()


class _Answer:
    """The answer to one request."""

    def __init__(self, scope: Scope, body: "_Body", send: Send) -> None:
        self.body = body
        self._scope, self._send = scope, send
        self._begun = False

    async def send(self, message: Any, rest_s: float = REST_S) -> None:
        """Send a message of ASGI, with the headers that each answer has."""
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
        """Send a refusal, unless an answer has begun."""
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
        self._ahead: deque[Any] = deque()  # messages that were read before the application asked
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        self._is_long = any(not value.isdigit() or int(value[:10]) > REST_BYTES_MAX for value in lengths)
        self.over = not lengths and not any(name == b"transfer-encoding" for name, _ in scope["headers"])

    async def read_ahead(self) -> None:
        """Read the body, as much as one may have; the application refuses a longer one."""
        octets = 0
        while not self.over and not self._is_long and octets <= REST_BYTES_MAX:
            message = await self._next()
            octets += len(message.get("body", b""))
            self._ahead.append(message)

    async def receive(self) -> Any:
        """Return the next message of the server, as ASGI has it."""
        return self._ahead.popleft() if self._ahead else await self._next()

    async def _next(self) -> Any:
        message = await self._receive()
        self.over = self.over or not message.get("more_body")
        return message

    async def take_rest(self, seconds: float) -> None:
        """Take what nobody read, as much as a body may have and as far as it comes in time."""
        left = REST_BYTES_MAX
        with trio.move_on_after(seconds):
            while not self.over and left > 0:
                left -= len((await self._next()).get("body", b""))
