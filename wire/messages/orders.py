"""Control messages of orders: what an operator wants of single nodes, which a router passes on over their links.

The router has judged the operator; a node takes an order from any router, and answers it with the same number.
"""

from typing import Annotated

from msgspec import Meta, Struct

from wire.messages.message import Message
from wire.messages.ranges import U64, Detail, UserText, Verb

__all__ = ["DrainOrder", "NodeOrdered", "OrderNode"]

LINES_MAX = 256  # of an answer; a reload tells 201 at most

Line = Annotated[str, Meta(max_length=512)]


class OrderNode(Message, tag="OrderNode"):
    """Router to a node: ``reload``, or to an edge ``client kick`` of ``subject``, ``client drain`` by a DrainOrder."""

    request: U64
    verb: Verb
    subject: UserText = ""
    dry_run: bool = False


class DrainOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """How an edge lets its clients go, as JSON in an order's ``subject``; rate 0: as the edge's setting says."""

    rate: Annotated[int, Meta(ge=0, le=100_000)] = 0
    redirect: bool = False


class NodeOrdered(Message, tag="NodeOrdered"):
    """The answer: ``count`` of what was ended, or the lines of a reload; ``error`` is "" if it was carried out."""

    request: U64
    count: U64 = 0
    lines: Annotated[list[Line], Meta(max_length=LINES_MAX)] = []
    error: Detail = ""
