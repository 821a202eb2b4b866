"""Callouts of the step ``http`` with an ``AnswerCache``; ``callout_service.py`` sends the requests."""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from access.identity.chain import Ticket
from access.identity.http_answer import HttpJob, HttpReply, cache_s, read_answer
from access.limits.answer_cache import AnswerCache
from conf.edge_settings import ListenerSettings
from conf.errors import UserError
from edge.login.auth_jobs import AuthJobs
from edge.login.bounded_http import needs_httpx, server_url, tls_context
from edge.login.callout_service import CalloutService, Server
from edge.login.logins import Done
from wire.clock import boot_time
from wire.node.reload_parts import changed_files, file_marks, secret_marks

__all__ = ["HttpCallouts"]

KEPT_BYTES_MAX = 4096  # of a cached response; longer ones are requested each time

Loaded = dict[str, tuple[ssl.SSLContext, dict[str, str]]]  # by listener: TLS context, and marks of the files


class _Callout:
    """The request about one client."""

    def __init__(self, job: HttpJob, cache: AnswerCache[HttpReply]) -> None:
        self.body = job.body
        self._key = job.cache_key
        self._cache = cache
        self._ticket = cache.ticket
        self.kept = cache.get(job.cache_key, boot_time())

    def read(self, reply: HttpReply | None) -> tuple[HttpReply | None, str]:
        """Return the reply and its outcome; cache it unless permissions were removed since the request."""
        if reply is None:
            return None, ""
        try:
            outcome = read_answer(reply).result
        except ValueError:
            return reply, "wrong"
        age_s = cache_s(reply)
        if age_s and len(reply.body) <= KEPT_BYTES_MAX:
            is_yes = outcome == "allow"
            self._cache.put(self._key, reply, boot_time(), positive=is_yes, max_age_s=age_s, ticket=self._ticket)
        return reply, outcome


class HttpCallouts:
    """Callouts of one edge; also the part of a reload for their certificates.

    Args:
        listeners: Those with an HTTP server.
        cache: Of responses; cleared when permissions are removed.
        desk: Queue of the logins.
        done: Called with the result of each login.

    Raises:
        UserError: The extra is not installed, or a file is unusable.
    """

    def __init__(
        self, listeners: Sequence[ListenerSettings], cache: AnswerCache[HttpReply], desk: AuthJobs, done: Done
    ) -> None:
        self._cache = cache
        keys = ("http_ca", "http_certificate", "http_key")
        self.settings: Sequence[str] = [f"edge.listeners.{one.name}.{key}" for one in listeners for key in keys]
        self._held = _load(listeners)
        servers = {
            one.name: Server(
                one.name, "http_url", server_url(one, "http_url"), "application/json", self._held[one.name][0]
            )
            for one in listeners
        }
        self.asking = CalloutService(servers, self._question, desk, done)

    def _question(self, ticket: Ticket) -> _Callout | None:
        return _Callout(ticket.job, self._cache) if isinstance(ticket.job, HttpJob) else None

    def load(self, config: Any) -> Loaded:
        """Read the files of all listeners.

        Raises:
            UserError: One is unusable.
        """
        return _load([listener for listener in config.edge.listeners if listener.http_url])

    def current(self) -> Loaded:
        """Return the contexts in force."""
        return self._held

    def difference(self, loaded: Loaded) -> list[str]:
        """Return the files with changed content."""
        return changed_files(_marks(self._held), _marks(loaded))

    def put(self, loaded: Loaded) -> None:
        """Use these contexts, and clear the response cache."""
        for name, (context, marks) in loaded.items():
            if marks != self._held[name][1]:
                self.asking.replace_context(name, context)
        self._held = loaded
        self._cache.clear()


def _load(listeners: Sequence[ListenerSettings]) -> Loaded:
    loaded: Loaded = {}
    for listener in listeners:
        needs_httpx(f"listener {listener.name}: http_url")
        certificate, key = listener.http_certificate, listener.http_key
        shown = (certificate, key) if certificate is not None and key is not None else None
        paths: list[Path] = [path for path in (listener.http_ca, certificate) if path is not None]
        marks = {**file_marks(paths), **secret_marks([key] if key is not None else [])}
        try:
            loaded[listener.name] = tls_context(listener.http_ca, shown), marks
        except UserError as error:
            raise UserError(f"listener {listener.name}: {error}") from None
    return loaded


def _marks(loaded: Loaded) -> dict[str, str]:
    return {path: mark for _, marks in loaded.values() for path, mark in marks.items()}
