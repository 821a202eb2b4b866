"""The events of one trace over HTTP, put together and ordered by cause; beginning and ending one are verbs."""

from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter

from access.operators.verbs import Role
from admin import traces
from admin.http.partial import Partial
from admin.http.row_handlers import ClusterOf, refused
from conf.errors import UserError
from wire.messages.look_rows_nodes import SeenTraceEvent

__all__ = ["trace_handlers"]

TOTAL_S = 5.0
Name = Annotated[str, Parameter(min_length=1, max_length=64, description="Of the trace.")]
Limit = Annotated[int, Parameter(ge=1, le=10_000, description="Rows: the last ones.")]


class ToldEvent(SeenTraceEvent, omit_defaults=True):
    """An event, its time by this service's clock, and by how much that may be wrong."""

    error_us: int | None = None


class Events(msgspec.Struct):
    """Events of one trace."""

    rows: list[ToldEvent]
    complete: bool
    partial: list[Partial]


def trace_handlers(cluster_of: ClusterOf) -> list[HTTPRouteHandler]:
    """Return the handlers."""

    @get(
        "/traces/{trace:str}",
        opt={"role": Role.OPERATOR},
        summary="Events of a trace, ordered by cause",
        operation_id="list_trace",
    )
    async def events(request: Request[Any, Any, Any], trace: Name, limit: Limit = 1_000) -> Events:
        cluster = await cluster_of(request.state.caller, TOTAL_S)
        try:
            found = await traces.read(cluster, trace, {})
        except UserError as error:
            raise refused(error) from None
        clocks = await traces.clocks_of(cluster, [node for node, _ in found.rows])
        rows = [_row(one) for one in traces.in_order(found.rows, clocks)[-limit:]]
        return Events(rows, not found.missing, [Partial(*one) for one in found.missing])

    return [events]


def _row(told: traces.Told) -> ToldEvent:
    fields = {name: getattr(told.event, name) for name in SeenTraceEvent.__struct_fields__}
    fields |= {"node": told.node, "at_us": told.at_us, "carried": None}
    return ToldEvent(**fields, error_us=told.error_us)
