"""Completes the OpenAPI description: formats of timestamps, and problem responses of every path."""

from typing import Any

from admin.api_rows import TIMESTAMP_TEXT
from admin.http.problems import MEDIA_TYPE

__all__ = ["complete"]

NAME = "Problem"
METHODS = ("get", "post", "put", "patch", "delete")
MEMBERS = {
    "type": {"type": "string", "description": "urn:stratamq: and the code."},
    "title": {"type": "string"},
    "status": {"type": "integer"},
    "code": {"type": "string", "description": "Stable code for programs."},
    "detail": {"type": "string", "description": "What is wrong, one line."},
    "do": {"type": "string", "description": "What to do about it, one line."},
    "request_id": {"type": "string", "description": "Also in the audit log."},
}
STATUSES = {
    "400": "The request is wrong; `detail` has the reason.",
    "401": "The token, cookie or certificate is unknown.",
    "403": "The caller's role is too low, or a browser's change comes from another site.",
    "default": "Any other problem.",
}
LATER = {
    "202": {
        "description": ("Partly done after the waiting time: nodes follow, or the operation in `Location` continues.")
    }
}
BY_SERVER = {"431": {"description": "The header is larger than 16 KiB: the server's own response, without a body."}}


def complete(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the problem responses of each operation; return the description."""
    schema.setdefault("components", {}).setdefault("schemas", {})[NAME] = {
        "type": "object",
        "description": "RFC 9457, with additional members.",
        "properties": MEMBERS,
        "required": list(MEMBERS),
    }
    for of in schema["components"]["schemas"].values():
        for name, property_ in of.get("properties", {}).items():
            if property_.get("description") == TIMESTAMP_TEXT:  # Litestar ignores the format of the type
                of["properties"][name] = {**property_, "format": "date-time"}
    content = {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{NAME}"}}}
    for operations in schema.get("paths", {}).values():
        for method in METHODS:
            if method in operations:
                told: dict[str, Any] = {
                    status: {"description": text, "content": content} for status, text in STATUSES.items()
                }
                later = LATER if method != "get" else {}
                operations[method].setdefault("responses", {}).update(told | later | BY_SERVER)
                _free_body(operations[method], schema["components"]["schemas"])
    return schema


def _free_body(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Mark a body as optional if all its members are."""
    body = operation.get("requestBody")
    if body is None:
        return
    of = next(iter(body["content"].values()))["schema"]
    choices = [one for one in of.get("oneOf", of.get("anyOf", [of])) if "$ref" in one]
    if choices and not any(schemas[one["$ref"].rpartition("/")[2]].get("required") for one in choices):
        body["required"] = False
