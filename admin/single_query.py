"""One look at one node as the HTTP service answers it, and what that means for a gather.

Rows are those of the kind, as JSON; ``failed`` says why the node could not be asked, ``error`` what it refused.
"""

from typing import Any

import msgspec

from admin.scatter_gather import Event, LinkFailed, QueryAnswered
from wire.messages.query_kinds import LOOK_KINDS

__all__ = ["SingleQuery", "event_of", "one_look"]


class SingleQuery(msgspec.Struct):
    """The answer of ``/looks/<kind>``."""

    rows: list[Any] = []
    after: str = ""  # go on there; "": this was the end
    incarnation: int = 0
    total: int = 0
    busy_ms: int = 0
    error: str = ""
    failed: str = ""


def one_look(event: Event) -> SingleQuery:
    """Return what a node answered."""
    if isinstance(event, QueryAnswered):
        return SingleQuery(list(event.rows), event.after, event.incarnation, event.total, event.busy_ms, event.error)
    return SingleQuery(failed=event.why if isinstance(event, LinkFailed) else "no answer")


def event_of(look: SingleQuery, what: str, node: str, request: int) -> Event:
    """Return what a gather is told.

    An answer whose rows are none of the kind is that of a failed node.
    """
    if look.failed:
        return LinkFailed(node, look.failed)
    try:
        rows = [msgspec.convert(row, LOOK_KINDS[what].row) for row in look.rows]
    except msgspec.ValidationError as error:
        return LinkFailed(node, f"its rows cannot be read: {error}")
    return QueryAnswered(request, look.incarnation, rows, look.after, look.busy_ms, look.error, look.total)
