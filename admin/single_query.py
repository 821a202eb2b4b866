"""One query to one node as the HTTP service answers it, and its conversion to a scatter-gather event.

Rows are JSON of the kind. ``failed`` is the reason why the node could not be queried, ``error`` the node's refusal.
"""

from typing import Any

import msgspec

from admin.scatter_gather import Event, LinkFailed, QueryAnswered
from wire.messages.query_kinds import LOOK_KINDS

__all__ = ["SingleQuery", "event_of", "to_single_query"]


class SingleQuery(msgspec.Struct):
    """The answer of ``/looks/<kind>``."""

    rows: list[Any] = []
    after: str = ""  # next position; "": the end
    incarnation: int = 0
    total: int = 0
    busy_ms: int = 0
    error: str = ""
    failed: str = ""


def to_single_query(event: Event) -> SingleQuery:
    """Return the answer for a node's event."""
    if isinstance(event, QueryAnswered):
        return SingleQuery(list(event.rows), event.after, event.incarnation, event.total, event.busy_ms, event.error)
    return SingleQuery(failed=event.why if isinstance(event, LinkFailed) else "no answer")


def event_of(answer: SingleQuery, what: str, node: str, request: int) -> Event:
    """Return the event for an answer.

    Rows of the wrong type count as a failed node.
    """
    if answer.failed:
        return LinkFailed(node, answer.failed)
    try:
        rows = [msgspec.convert(row, LOOK_KINDS[what].row) for row in answer.rows]
    except msgspec.ValidationError as error:
        return LinkFailed(node, f"invalid rows: {error}")
    return QueryAnswered(request, answer.incarnation, rows, answer.after, answer.busy_ms, answer.error, answer.total)
