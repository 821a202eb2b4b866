"""Requests of the step ``ocsp`` to the responder of a listener; ``callout_service.py`` sends them.

The step caches responses itself, until their next update. A reply with a status other than 200 counts as none.
"""

from collections.abc import Sequence

from access.identity.chain import Ticket
from access.identity.http_answer import HttpReply
from access.identity.ocsp import OcspJob, OcspReply
from conf.edge_settings import ListenerSettings
from edge.login.auth_jobs import AuthJobs
from edge.login.bounded_http import needs_httpx, server_url, tls_context
from edge.login.callout_service import CalloutService, Server
from edge.login.logins import Done

__all__ = ["ocsp_questions"]

OK = 200


class _OcspRequest:
    """The request about one certificate."""

    kept: None = None

    def __init__(self, job: OcspJob) -> None:
        self.body = job.request

    def read(self, reply: HttpReply | None) -> tuple[OcspReply, str]:
        """Return the responder's reply; the step evaluates it."""
        if reply is None:
            return OcspReply(b""), ""
        return (OcspReply(reply.body), "answered") if reply.status == OK else (OcspReply(b""), "status")


def ocsp_questions(listeners: Sequence[ListenerSettings], desk: AuthJobs, done: Done) -> CalloutService:
    """Return the OCSP service of an edge.

    Args:
        listeners: Those with a responder.
        desk: Queue of the logins.
        done: Called with the result of each login.

    Raises:
        UserError: The extra is not installed.
    """
    servers = {}
    for one in listeners:
        needs_httpx(f"listener {one.name}: ocsp_url")
        servers[one.name] = Server(
            one.name, "ocsp_url", server_url(one, "ocsp_url"), "application/ocsp-request", tls_context(None)
        )

    def question_of(ticket: Ticket) -> _OcspRequest | None:
        return _OcspRequest(ticket.job) if isinstance(ticket.job, OcspJob) else None

    return CalloutService(servers, question_of, desk, done)
