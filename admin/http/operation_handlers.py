"""The path of long work: rebalances, drains and exports of the whole cluster, as ``operation list`` has them."""

from collections.abc import Awaitable, Callable
from typing import Any

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler

from access.operators.verbs import Role
from admin.http.callers import Caller
from admin.http.operation_page import OperationPage, OperationRow
from admin.http.partial import Partial
from admin.http.row_handlers import ClusterOf
from admin.operations import exports_of, operations

__all__ = ["operation_handlers"]

LOOK_S = 5.0
AskVerb = Callable[[Caller, str], Awaitable[Any]]  # the result of a verb that only reads, for a caller


def operation_handlers(cluster_of: ClusterOf, ask: AskVerb) -> list[HTTPRouteHandler]:
    """Return the handler."""

    @get("/operations", opt={"role": Role.VIEWER}, summary="Rebalances, drains, exports", operation_id="operations")
    async def tell(request: Request[Any, Any, Any]) -> OperationPage:
        caller: Caller = request.state.caller
        ring, nodes = await ask(caller, "ring status"), await ask(caller, "node list")
        exports, missing = await exports_of(await cluster_of(caller, LOOK_S))
        rows = [OperationRow(**row._asdict()) for row in operations(ring, nodes["nodes"], exports)]
        return OperationPage(rows, not missing, [Partial(*one) for one in missing])

    return [tell]
