"""Paths of long work: rebalances, drains and exports of the whole cluster, as ``operation list`` has them.

Ending one is the verb that its row names, with that verb's role, audit and dry run.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from litestar import Request, Response, delete, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter

from access.operators.commands import OperatorRole
from admin.http.callers import Caller
from admin.http.changes import CommandRequest
from admin.http.command_handlers import Carry
from admin.http.operation_page import OperationPage, OperationRow
from admin.http.partial import PartialResult
from admin.http.problems import Problem
from admin.http.row_handlers import ClusterOf
from admin.operations import EXPORT_CANCEL, RunningCommand, exports_of, find, operations
from conf.errors import UserError

__all__ = ["operation_handlers"]

LOOK_S = 5.0
AskVerb = Callable[[Caller, str], Awaitable[Any]]  # the result of a verb that only reads, for a caller


def operation_handlers(cluster_of: ClusterOf, ask: AskVerb, carry: Carry) -> list[HTTPRouteHandler]:
    """Return the handlers."""

    async def found(caller: Caller) -> tuple[list[RunningCommand], list[PartialResult]]:
        ring, nodes = await ask(caller, "ring status"), await ask(caller, "node list")
        exports, missing = await exports_of(await cluster_of(caller, LOOK_S))
        return operations(ring, nodes["nodes"], exports), [PartialResult(*one) for one in missing]

    @get(
        "/operations",
        opt={"role": OperatorRole.VIEWER},
        summary="Rebalances, drains, exports",
        operation_id="operations",
    )
    async def tell(request: Request[Any, Any, Any]) -> OperationPage:
        rows, partial = await found(request.state.caller)
        return OperationPage([OperationRow(**row._asdict()) for row in rows], not partial, partial)

    async def one_of(caller: Caller, name: str) -> RunningCommand:
        rows, partial = await found(caller)
        try:
            return find(rows, name)
        except UserError as error:
            silent = f"; {', '.join(one.node for one in partial)} did not answer" if partial else ""
            raise Problem(404, "not_found", error.message + silent, "GET /api/v1/operations names them") from None

    @get("/operations/{name:str}", opt={"role": OperatorRole.VIEWER}, summary="One of them", operation_id="operation")
    async def tell_one(request: Request[Any, Any, Any], name: str) -> OperationRow:
        return OperationRow(**(await one_of(request.state.caller, name))._asdict())

    @delete(
        "/operations/{name:str}",
        opt={"role": OperatorRole.OPERATOR, "verb": "operation cancel"},
        status_code=200,
        summary="End a rebalance, a drain or an export",
        description="Carries out the verb that the row names in `cancel`; wants the role operator.",
        operation_id="operation_cancel",
    )
    async def cancel(
        request: Request[Any, Any, Any],
        name: str,
        dry_run: Annotated[bool, Parameter(query="dry_run", description="Only say which verb would end it.")] = False,
        if_match: Annotated[str | None, Parameter(header="If-Match", description="As of that verb.")] = None,
    ) -> Response[dict[str, Any]]:
        operation = await one_of(request.state.caller, name)
        if not operation.cancel:
            raise Problem(409, "refused", f"{operation.id} is {operation.state}: nothing is left to cancel")
        if dry_run:
            return Response({"id": operation.id, "would": operation.cancel, "node": operation.node})
        at_node = operation.cancel == EXPORT_CANCEL
        arguments = {"node": operation.node} if operation.node and not at_node else {}
        node = operation.node if at_node else ""
        return await carry(CommandRequest.of(request, operation.cancel, arguments, False, if_match or "", node=node))

    return [tell, tell_one, cancel]
