"""Problems that the HTTP service answers with: one line of what is wrong, one of what to do, and a stable code.

The form is RFC 9457's, ``application/problem+json``, with ``code``, ``do`` and ``request_id`` as members of our own.
Nothing of a secret and no traceback stands in one.
"""

from http import HTTPStatus
from typing import Any

from conf.errors import ExitCode
from conf.urls import mask_urls

__all__ = ["MEDIA_TYPE", "Problem", "of_reply"]

MEDIA_TYPE = "application/problem+json"
DESCRIBED = "GET /api/v1/openapi.json describes what each path takes"
DO = {  # code -> what to do where whoever refused says nothing more exact
    "bad_request": DESCRIBED,
    "bad_method": DESCRIBED,
    "bad_type": "send the header Content-Type: application/json",
    "bad_key": "choose a shorter key",
    "not_found": "ask the list for what there is; " + DESCRIBED,
    "stale_cursor": "ask again without the cursor",
    "refused": "look at what is there now, then decide",
    "not_ready": "ask again in a moment",
    "under_way": "wait for its answer, then ask again",
    "too_many_keys": "wait, or send changes without a key",
    "forged": "read csrf of GET /api/v1/me, and send it as X-CSRF",
    "too_large": "send less: a body has 64 KiB at most",
    "failed": "see the log of the service",
}


class Problem(Exception):
    """An answer that is no success.

    Attributes:
        status: Of HTTP.
        code: A word that programs compare.
        detail: What is wrong, one line.
        do: What to do about it, one line; "": what ``DO`` says for the code.
        retry_s: When to ask again, 0 where that is not known.
        result: What nodes said of a change that failed, None where none was asked.
    """

    def __init__(
        self, status: int, code: str, detail: str, do: str = "", retry_s: float = 0.0, result: object = None
    ) -> None:
        super().__init__(detail)
        self.result = result
        self.status, self.code, self.detail, self.retry_s = status, code, detail, retry_s
        self.do = do or DO[code]

    def body(self, request_id: str) -> dict[str, Any]:
        """Return the members of the answer."""
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
    """Return the problem for what a node refused, by the exit code that the command line would end with."""
    detail, _, do = error.partition("; ") if "; " in error else (error, "", "")
    if exit_code == ExitCode.USAGE:
        return Problem(400, "bad_request", detail, do)
    if exit_code == ExitCode.NOT_READY:
        return Problem(503, "not_ready", detail, do, 1.0, result)
    if changes:
        return Problem(409, "refused", detail, do, result=result)
    return Problem(404, "not_found", detail, do)
