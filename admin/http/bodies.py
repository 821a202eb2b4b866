"""Bodies of requests: JSON of bounded size and nesting, with the media type ``application/json``.

A page of another site can send a form in three media types without a preflight request. None of them is
``application/json``, so a form is refused before its content is read.
"""

from collections.abc import Mapping
from typing import Any

from litestar import Request

from access.identity.strict_json import read_json
from admin.http.problems import Problem

__all__ = ["BODY_BYTES_MAX", "has_body", "media_type_fault", "validate_body"]

BODY_BYTES_MAX = 64 * 1024
BODY_DEPTH_MAX = 16  # the deepest verb has four levels
MEDIA_TYPE = "application/json"
CHARSET = "utf-8"


async def validate_body(request: Request[Any, Any, Any]) -> None:
    """Validate the body of a request, if it has one; handlers read the same bytes again.

    Raises:
        Problem: 415: another media type; 400: not JSON, or nested too deeply.
        HTTPException: 413: it is too large.
    """
    if not has_body(request.headers):
        return
    fault = media_type_fault(request.headers.get("content-type", ""))
    if fault:
        raise Problem(415, "bad_type", fault)
    body = await request.body()
    if not body:
        return
    try:
        read_json(body, BODY_BYTES_MAX, BODY_DEPTH_MAX)
    except ValueError as error:
        raise Problem(400, "bad_request", f"the body: {error}") from None


def has_body(headers: Mapping[str, str]) -> bool:
    """Return whether a request announces a body or its type: a form without fields has no bytes."""
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0" or "content-type" in headers


def media_type_fault(content_type: str) -> str:
    """Return why a Content-Type is not JSON in UTF-8; "" if it is."""
    media_type, *parameters = (part.strip().lower() for part in content_type.split(";"))
    if media_type != MEDIA_TYPE:
        return f"the Content-Type of a body is {MEDIA_TYPE}, not {media_type[:64] or 'absent'}"
    named = [part.partition("=") for part in parameters if part]
    charset = next((value.strip('" ') for name, _, value in named if name.strip() == "charset"), CHARSET)
    return "" if charset == CHARSET else f"the charset of a body is {CHARSET}, not {charset[:64]}"
