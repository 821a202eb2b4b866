"""Key sets of tokens over HTTP: fetched periodically, or when a login names an unknown key.

One task for each URL; waiting logins share a fetch. A response has at most 64 KiB and 10 s in all; a redirect is a
failure. The former keys stay valid through failures (``KeySource``).
"""

import logging
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

from access.identity.chain import Ticket
from conf.edge_settings import ListenerSettings
from conf.events import say
from conf.url_settings import Url
from edge.login.auth_jobs import AuthJobs
from edge.login.bounded_http import ANSWER_BYTES_MAX, error_text, needs_httpx, read_body, server_url, tls_context
from edge.login.logins import Done
from wire.clock import boot_time

if TYPE_CHECKING:
    from access.identity.key_set import KeySource

__all__ = ["KeyRefresh"]

logger = logging.getLogger(__name__)

ANSWER_S = 10.0
CONNECT_S = 3.0
POLL_S = 1.0
RECENT_S = 2.0  # a login needs no new fetch after one as recent as this


class _KeyEndpoint:
    """One URL, and the logins that wait for it."""

    def __init__(self, url: Url, source: "KeySource", context: ssl.SSLContext) -> None:
        self.url = url
        self.source = source
        self.context = context
        self.waiting: list[tuple[int, Ticket]] = []
        self.wanted = trio.Event()
        self.fetched_at = float("-inf")
        self.last_problem = ""


class KeyRefresh:
    """Fetches of one edge.

    Args:
        listeners: Those with a key set URL; their names are those of the tickets.
        sources: By listener.
        desk: Queue of the logins.
        done: Called for each login after its fetch.

    Raises:
        UserError: The extra is not installed, or an authority's file is unusable.
    """

    def __init__(
        self, listeners: list[ListenerSettings], sources: Mapping[str, "KeySource"], desk: AuthJobs, done: Done
    ) -> None:
        self._desk = desk
        self._done = done
        self._came = trio.Event()
        self._endpoints = {
            listener.name: _KeyEndpoint(
                server_url(listener, "token_jwks_url"), sources[listener.name], _context(listener)
            )
            for listener in listeners
        }

    def replace_url(self, listener: str, url: Url) -> None:
        """Fetch the keys of a listener from another URL at once; the former keys stay until then."""
        endpoint = self._endpoints[listener]
        endpoint.url = url
        endpoint.source.expire()
        endpoint.wanted.set()

    def came(self) -> None:
        """Wake the service: a login is queued."""
        self._came.set()

    async def run(self) -> None:
        """Fetch until cancelled."""
        async with trio.open_nursery() as nursery:
            for endpoint in self._endpoints.values():
                nursery.start_soon(self._keep, endpoint)
            while True:
                self._distribute()
                self._came = trio.Event()
                await self._came.wait()

    def _distribute(self) -> None:
        while (taken := self._desk.take()) is not None:
            number, ticket = taken
            endpoint = self._endpoints.get(ticket.credentials.listener)
            if endpoint is None or boot_time() - endpoint.fetched_at < RECENT_S:
                self._done(number, ticket, None)
            else:
                endpoint.waiting.append(taken)
                endpoint.wanted.set()

    async def _keep(self, endpoint: _KeyEndpoint) -> None:
        while True:
            with trio.move_on_after(POLL_S):
                await endpoint.wanted.wait()
            if not endpoint.waiting and not endpoint.source.is_due(boot_time()):
                continue
            endpoint.wanted = trio.Event()
            await self._fetch(endpoint)
            waiting, endpoint.waiting = endpoint.waiting, []
            for number, ticket in waiting:
                self._done(number, ticket, None)

    async def _fetch(self, endpoint: _KeyEndpoint) -> None:
        endpoint.source.began(boot_time())
        url = endpoint.url
        content, problem = await _content(endpoint)
        now = boot_time()
        endpoint.fetched_at = now
        if content is None:
            endpoint.source.failed(now)
        else:
            problem = endpoint.source.loaded(content, now)
        if problem and problem != endpoint.last_problem:
            say(logger, "login.keys_failed", url=endpoint.url, problem=problem)
        elif endpoint.last_problem and not problem:
            say(logger, "login.keys_fetched", url=endpoint.url)
        endpoint.last_problem = problem
        if endpoint.url != url:
            endpoint.source.expire()


async def _content(endpoint: _KeyEndpoint) -> tuple[bytes | None, str]:
    """Return the body of a response, or None and the error."""
    import httpx

    timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
    try:
        with trio.fail_after(ANSWER_S):
            async with (
                httpx.AsyncClient(timeout=timeout, verify=endpoint.context, trust_env=False) as client,
                client.stream("GET", endpoint.url.plain, headers={"Accept": "application/json"}) as answer,
            ):
                if answer.status_code != httpx.codes.OK:
                    return None, f"status {answer.status_code}"
                body = await read_body(answer)
                return body, "" if body is not None else f"an answer of more than {ANSWER_BYTES_MAX} bytes"
    except trio.TooSlowError:
        return None, f"no whole answer within {ANSWER_S:g} s"
    except Exception as error:  # any error that a hostile server can provoke in the library: the former keys stay
        return None, f"{type(error).__name__}: {error_text(error)}"


def _context(listener: ListenerSettings) -> ssl.SSLContext:
    needs_httpx(f"listener {listener.name}: token_jwks_url")
    return tls_context(listener.token_jwks_ca)
