"""Paths of long-running operations: rebalances, drains and exports, like ``operation list``.

Cancelling one runs the verb in its row, with that verb's role, audit and dry run.
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
AskVerb = Callable[[Caller, str], Awaitable[Any]]  # returns the result of a reading verb for a caller


def operation_handlers(cluster_of: ClusterOf, ask: AskVerb, run: Carry) -> list[HTTPRouteHandler]:
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
    async def list_operations(request: Request[Any, Any, Any]) -> OperationPage:
        rows, partial = await found(request.state.caller)
        return OperationPage([OperationRow(**row._asdict()) for row in rows], not partial, partial)

    async def find_operation(caller: Caller, name: str) -> RunningCommand:
        rows, partial = await found(caller)
        try:
            return find(rows, name)
        except UserError as error:
            silent = f"; {', '.join(one.node for one in partial)} did not answer" if partial else ""
            raise Problem(404, "not_found", error.message + silent, "GET /api/v1/operations lists them") from None

    @get("/operations/{name:str}", opt={"role": OperatorRole.VIEWER}, summary="One operation", operation_id="operation")
    async def get_operation(request: Request[Any, Any, Any], name: str) -> OperationRow:
        return OperationRow(**(await find_operation(request.state.caller, name))._asdict())

    @delete(
        "/operations/{name:str}",
        opt={"role": OperatorRole.OPERATOR, "verb": "operation cancel"},
        status_code=200,
        summary="Cancel a rebalance, a drain or an export",
        description="Runs the command in `cancel` of the row; needs the role operator.",
        operation_id="operation_cancel",
    )
    async def cancel(
        request: Request[Any, Any, Any],
        name: str,
        dry_run: Annotated[bool, Parameter(query="dry_run", description="Dry run: only return the command.")] = False,
        if_match: Annotated[str | None, Parameter(header="If-Match", description="As for that command.")] = None,
    ) -> Response[dict[str, Any]]:
        operation = await find_operation(request.state.caller, name)
        if not operation.cancel:
            raise Problem(409, "refused", f"{operation.id} is {operation.state}: it cannot be cancelled")
        if dry_run:
            return Response({"id": operation.id, "would": operation.cancel, "node": operation.node})
        at_node = operation.cancel == EXPORT_CANCEL
        arguments = {"node": operation.node} if operation.node and not at_node else {}
        node = operation.node if at_node else ""
        return await run(CommandRequest.of(request, operation.cancel, arguments, False, if_match or "", node=node))

    return [list_operations, get_operation, cancel]
