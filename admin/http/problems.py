"""Problem responses of the HTTP service: one line of what is wrong, one of what to do, and a stable code.

The format is RFC 9457, ``application/problem+json``, with the additional members ``code``, ``do`` and ``request_id``.
They contain no secrets and no traceback.
"""

from http import HTTPStatus
from typing import Any

from conf.errors import ExitCode
from conf.urls import mask_urls

__all__ = ["MEDIA_TYPE", "Problem", "of_reply"]

MEDIA_TYPE = "application/problem+json"
DESCRIBED = "GET /api/v1/openapi.json describes the parameters of each path"
DO = {  # code -> remedy, if the refusal has no more specific one
    "bad_request": DESCRIBED,
    "bad_method": DESCRIBED,
    "bad_type": "send the header Content-Type: application/json",
    "bad_key": "choose a shorter key",
    "not_found": "list the existing ones; " + DESCRIBED + DESCRIBED,
    "stale_cursor": "repeat the query without the cursor",
    "refused": "check the current state, then decide",
    "not_ready": "retry later",
    "under_way": "wait for its response, then retry",
    "too_many_keys": "wait, or send changes without a key",
    "forged": "read csrf of GET /api/v1/me, and send it as X-CSRF",
    "too_large": "send less: a body has at most 64 KiB",
    "failed": "see the log of the service",
}


class Problem(Exception):
    """An unsuccessful response.

    Attributes:
        status: HTTP status.
        code: Stable code for programs.
        detail: What is wrong, one line.
        do: Remedy, one line; "": the one in ``DO`` for the code.
        retry_s: Time until a retry, 0 if unknown.
        result: Replies of the nodes to a failed change, None if none was sent.
    """

    def __init__(
        self, status: int, code: str, detail: str, do: str = "", retry_s: float = 0.0, result: object = None
    ) -> None:
        super().__init__(detail)
        self.result = result
        self.status, self.code, self.detail, self.retry_s = status, code, detail, retry_s
        self.do = do or DO[code]

    def body(self, request_id: str) -> dict[str, Any]:
        """Return the members of the response."""
        told = {} if self.result is None else {"result": self.result}
        return {
            "type": f"urn:stratamq:{self.code}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": mask_urls(self.detail),
            "do": self.do,
            "request_id": request_id,
        } | told


def of_reply(error: str, exit_code: int, *, changes: bool, result: object = None) -> Problem:
    """Return the problem for a node's refusal, from the exit code of the command line."""
    detail, _, do = error.partition("; ") if "; " in error else (error, "", "")
    if exit_code == ExitCode.USAGE:
        return Problem(400, "bad_request", detail, do)
    if exit_code == ExitCode.NOT_READY:
        return Problem(503, "not_ready", detail, do, 1.0, result)
    if changes:
        return Problem(409, "refused", detail, do, result=result)
    return Problem(404, "not_found", detail, do)
