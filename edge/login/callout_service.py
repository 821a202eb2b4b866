"""Requests of logins to a server of their listener, posted over HTTP with short timeouts.

A request has 0.5 s to connect and 2 s in all, 32 run at once, a response has at most 64 KiB; redirects are not
followed. After five failures in 10 s (no complete response, or status 500 and above) the server gets no request for 5
s; these logins continue at once without a response. Other wrong responses do not count: a client could provoke them,
and they cost no time.
"""

import logging
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import trio

from access.identity.chain import Ticket
from access.identity.http_answer import HttpReply
from access.limits.breaker import Breaker
from conf.events import say
from conf.url_settings import Url
from edge.login.auth_jobs import AuthJobs
from edge.login.bounded_http import error_text, read_body
from edge.login.logins import Done
from wire.clock import boot_time

if TYPE_CHECKING:
    import httpx

__all__ = ["CalloutRequest", "CalloutService", "Server"]

logger = logging.getLogger(__name__)

CONNECT_S = 0.5
ANSWER_S = 2.0
CONCURRENT_MAX = 32
CLOSE_S = 1.0


class CalloutRequest(Protocol):
    """The request of one login."""

    @property
    def body(self) -> bytes:
        """Sent to the server."""

    @property
    def kept(self) -> object | None:
        """The cached result, None if a request is needed."""

    def read(self, reply: HttpReply | None) -> tuple[object, str]:
        """Return the result of a reply, None for no reply; and a label for the counters, empty without a reply."""


class ServerConnections:
    """Connections to a server under one TLS context."""

    def __init__(self, context: ssl.SSLContext) -> None:
        import httpx

        self.asking = 0
        self.client = httpx.AsyncClient(
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=CONCURRENT_MAX, max_keepalive_connections=CONCURRENT_MAX),
            verify=context,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close the connections."""
        with trio.move_on_after(CLOSE_S):
            await self.client.aclose()


class Server:
    """The server of one listener.

    Args:
        setting: Names it in the log.
        url: Its URL; a reload may replace it.
        content: Content type of the requests.
        context: Verifies it.
    """

    def __init__(self, listener: str, setting: str, url: Url, content: str, context: ssl.SSLContext) -> None:
        self.listener = listener
        self.setting = setting
        self.url = url
        self.headers = {"Content-Type": content, "Accept-Encoding": "identity"}
        self.door = ServerConnections(context)
        self.breaker = Breaker()
        self.is_failure_logged = False  # it was logged that requests stopped

    def tell(self, problem: str) -> None:
        """Log once that requests stop or resume."""
        if self.breaker.closed == (not self.is_failure_logged):
            return
        self.is_failure_logged = not self.is_failure_logged
        if self.is_failure_logged:
            say(logger, "login.server_fails", listener=self.listener, setting=self.setting, problem=problem)
        else:
            say(logger, "login.server_answers", listener=self.listener, setting=self.setting)


class CalloutService:
    """The requests of one kind at one edge.

    Args:
        servers: By listener name of the tickets.
        question_of: Returns the request of a ticket, None for a job of another kind.
        desk: Queue of the logins.
        done: Called with the result of each login.

    Attributes:
        outcomes: Number of results by listener and kind.
    """

    def __init__(
        self,
        servers: Mapping[str, Server],
        question_of: Callable[[Ticket], CalloutRequest | None],
        desk: AuthJobs,
        done: Done,
    ) -> None:
        self._servers = servers
        self._question_of = question_of
        self._desk = desk
        self._done = done
        self._came = trio.Event()
        self._running = 0
        self._retired: list[ServerConnections] = []
        self.outcomes: Counter[tuple[str, ...]] = Counter()

    def came(self) -> None:
        """Wake the service: a login is queued."""
        self._came.set()

    def open_breakers(self) -> Mapping[tuple[str, ...], float]:
        """Return 1 for each listener with an open circuit breaker, else 0."""
        return {(name,): float(not server.breaker.closed) for name, server in self._servers.items()}

    def replace_url(self, listener: str, url: Url) -> None:
        """Use another URL for the server of a listener."""
        self._servers[listener].url = url

    def replace_context(self, listener: str, context: ssl.SSLContext) -> None:
        """Use another TLS context for the server of a listener."""
        server = self._servers[listener]
        self._retired.append(server.door)
        server.door = ServerConnections(context)
        self._came.set()

    async def run(self) -> None:
        """Send requests until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    self._came = trio.Event()
                    for door in [door for door in self._retired if not door.asking]:
                        self._retired.remove(door)
                        nursery.start_soon(door.close)
                    self._start_requests(nursery)
                    await self._came.wait()
        finally:
            with trio.CancelScope(shield=True):
                for door in [*self._retired, *(server.door for server in self._servers.values())]:
                    await door.close()

    def _start_requests(self, nursery: trio.Nursery) -> None:
        while self._running < CONCURRENT_MAX and (taken := self._desk.take()) is not None:
            number, ticket = taken
            server, question = self._servers.get(ticket.credentials.listener), self._question_of(ticket)
            if server is None or question is None:
                self._done(number, ticket, None)
                continue
            kept = question.kept
            permit = server.breaker.ask(boot_time()) if kept is None else 0
            if permit:
                self._running += 1
                nursery.start_soon(self._ask, server, permit, number, ticket, question)
            else:
                self.outcomes[server.listener, "cached" if kept is not None else "breaker_open"] += 1
                self._done(number, ticket, question.read(None)[0] if kept is None else kept)

    async def _ask(self, server: Server, permit: int, number: int, ticket: Ticket, question: CalloutRequest) -> None:
        door = server.door
        door.asking += 1
        try:
            reply, problem = await _post(door.client, server, question.body)
        finally:
            door.asking -= 1
            self._running -= 1
            self._came.set()
        server.breaker.done(permit, reply is not None and reply.status < 500, boot_time())
        server.tell(problem or (f"status {reply.status}" if reply is not None else ""))
        result, outcome = question.read(reply)
        self.outcomes[server.listener, outcome or problem.partition(":")[0]] += 1
        self._done(number, ticket, result)


async def _post(client: "httpx.AsyncClient", server: Server, body: bytes) -> tuple[HttpReply | None, str]:
    """Return the reply, or None and the error; its first word is for the counters."""
    import httpx

    try:
        with trio.fail_after(ANSWER_S):
            async with client.stream(
                "POST", server.url.plain, content=body, headers=server.headers, follow_redirects=False
            ) as answer:
                client.cookies.clear()  # no cookie of one client's response is sent in the next request
                content = await read_body(answer)
                if content is None:
                    return None, "too_long"
                said = answer.headers
                shown = said.get("content-type", ""), content, said.get("cache-control", "")
                return HttpReply(answer.status_code, *shown), ""
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        return None, f"connect: {error_text(error)}"
    except (trio.TooSlowError, httpx.TimeoutException):
        return None, f"timeout: no whole answer within {ANSWER_S:g} s"
    except Exception as error:  # any error that a hostile server can provoke in the library
        return None, f"broken: {type(error).__name__}: {error_text(error)}"
