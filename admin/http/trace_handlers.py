"""The events of one trace over HTTP in causal order; verbs start and stop traces."""

from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter

from access.operators.commands import OperatorRole
from admin import traces
from admin.api_rows import Timestamp, told_type
from admin.http.partial import PartialResult
from admin.http.row_handlers import ClusterOf, refused
from admin.timestamps import iso_us
from conf.errors import UserError
from wire.messages.node_rows import TraceEventRow

__all__ = ["trace_handlers"]

TOTAL_S = 5.0
Name = Annotated[str, Parameter(min_length=1, max_length=64, description="Name of the trace.")]
Limit = Annotated[int, Parameter(ge=1, le=10_000, description="Number of rows: the last ones.")]


class ApiTraceEvent(msgspec.Struct, kw_only=True):
    """An event, its time by this service's clock, and the maximum error."""

    at: Timestamp
    error_us: int
    node: str


OWN = ("at_us", "node", "carried")  # columns that the API converts or omits
ToldEvent: Any = told_type(TraceEventRow, OWN, (ApiTraceEvent,))


class Events(msgspec.Struct):
    """Events of one trace."""

    rows: list[ToldEvent]
    complete: bool
    partial: list[PartialResult]


def trace_handlers(cluster_of: ClusterOf) -> list[HTTPRouteHandler]:
    """Return the handlers."""

    @get(
        "/traces/{trace:str}",
        opt={"role": OperatorRole.OPERATOR},
        summary="Events of a trace, in causal order",
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
        return Events(rows, not found.missing, [PartialResult(*one) for one in found.missing])

    return [events]


def _row(told: traces.NodeTraceEvent) -> Any:
    names = [name for name in TraceEventRow.__struct_fields__ if name not in OWN]
    known = {name: getattr(told.event, name) for name in names}
    return ToldEvent(at=iso_us(told.at_us), error_us=told.error_us, node=told.node, **known)
