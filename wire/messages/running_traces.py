"""Control message about a running trace, from an edge to nodes that start or become primary of a partition.

Decision: docs/adr/0174-traces-follow.md.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta

from wire.messages.message import ControlMessage
from wire.messages.orders import TraceOrder
from wire.messages.queries import TRACE_S_MAX
from wire.messages.ranges import U64, Actor, Counted

__all__ = ["TOLD_ORIGINS_MAX", "RunningTrace"]

TOLD_ORIGINS_MAX = 1_024  # of one message, the newest ones

ToldOrigin: TypeAlias = tuple[U64, U64, U64]  # OriginKind, and its two numbers


class RunningTrace(ControlMessage, tag="RunningTrace"):
    """Edge to an edge or storage node, without a reply: start this trace, or add its origins.

    ``origins`` are messages published by the clients of a trace: rows of a queue do not have their publisher.
    """

    running: TraceOrder
    left_ms: Annotated[int, Meta(ge=1, le=1_000 * TRACE_S_MAX)]  # until it ends
    started_ms: Counted  # UTC
    actor: Actor = ""
    origins: Annotated[list[ToldOrigin], Meta(max_length=TOLD_ORIGINS_MAX)] = []
