"""The description of the API, completed: moments have their format, and every path may answer with a problem."""

from typing import Any

from admin.api_rows import MOMENT_TEXT
from admin.http.problems import MEDIA_TYPE

__all__ = ["complete"]

NAME = "Problem"
METHODS = ("get", "post", "put", "patch", "delete")
MEMBERS = {
    "type": {"type": "string", "description": "urn:stratamq: and the code."},
    "title": {"type": "string"},
    "status": {"type": "integer"},
    "code": {"type": "string", "description": "A word that programs compare."},
    "detail": {"type": "string", "description": "What is wrong, one line."},
    "do": {"type": "string", "description": "What to do about it, one line."},
    "request_id": {"type": "string", "description": "It stands in the audit too."},
}
STATUSES = {
    "400": "The request is wrong; `detail` says where.",
    "401": "Nobody is known by this token, cookie or certificate.",
    "403": "The caller's role is too low, or a browser's change is not its own.",
    "default": "Any other problem.",
}
LATER = {"202": {"description": "Done as far as was waited: nodes follow, or work goes on that `Location` names."}}
BY_SERVER = {"431": {"description": "The header is larger than 16 KiB: the server's own answer, without a body."}}


def complete(schema: dict[str, Any]) -> dict[str, Any]:
    """Add to each operation what it answers when it cannot do what was asked; return the description."""
    schema.setdefault("components", {}).setdefault("schemas", {})[NAME] = {
        "type": "object",
        "description": "RFC 9457, with members of our own.",
        "properties": MEMBERS,
        "required": list(MEMBERS),
    }
    for of in schema["components"]["schemas"].values():
        for name, property_ in of.get("properties", {}).items():
            if property_.get("description") == MOMENT_TEXT:  # Litestar takes no format from the type
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
    """Say that a body may be absent whose every member may be."""
    body = operation.get("requestBody")
    if body is None:
        return
    of = next(iter(body["content"].values()))["schema"]
    choices = [one for one in of.get("oneOf", of.get("anyOf", [of])) if "$ref" in one]
    if choices and not any(schemas[one["$ref"].rpartition("/")[2]].get("required") for one in choices):
        body["required"] = False
