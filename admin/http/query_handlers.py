"""Paths for programs that gather rows themselves, as the command line with ``--api`` does: the map, and one look.

A look goes to one node, once, with the caller's role; how many are asked, in which order and until when is the
program's business. What a look may cost a node is bounded there. A look that waits for news has a place of its own at
the gate (``waits``): it may stay for some seconds, and keeps nobody out meanwhile.
"""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter

from access.operators.commands import ROLES, OperatorRole
from admin.http.problems import Problem
from admin.http.row_handlers import ClusterOf
from admin.scatter_gather import NODE_S, QueryTemplate
from admin.single_query import SingleQuery, one_look
from wire.decoding import strictly
from wire.messages.queries import WAIT_MS_MAX
from wire.messages.query_kinds import LOOK_KINDS

__all__ = ["look_handlers", "waits"]

LIMIT_MAX = 1_000
WAIT = b"wait_ms="
TEXT_MAX = 65_535
Text = Annotated[str, Parameter(max_length=TEXT_MAX)]
Node = Annotated[str, Parameter(min_length=1, max_length=256, description="The node to ask.")]
Limit = Annotated[int, Parameter(ge=1, le=LIMIT_MAX, description="Rows at most.")]
Where = Annotated[str, Parameter(max_length=TEXT_MAX, description="Conditions: a JSON object of column to pattern.")]
Wait = Annotated[
    int,
    Parameter(
        ge=0, le=WAIT_MS_MAX, description="Of log, journal and trace: for news, if nothing is there behind `after`."
    ),
]
Columns = Annotated[str, Parameter(max_length=TEXT_MAX, description="Columns, with commas; every one.")]

_conditions = strictly(msgspec.json.Decoder(dict[str, str]).decode, "object")


def look_handlers(cluster_of: ClusterOf) -> list[HTTPRouteHandler]:
    """Return the handler of the map, and one for each kind of look."""

    @get("/map", opt={"role": OperatorRole.VIEWER}, summary="The whole map, for programs", operation_id="map")
    async def tell_map(request: Request[Any, Any, Any]) -> Response[msgspec.Raw]:
        cluster = await cluster_of(request.state.caller, NODE_S)
        return Response(msgspec.Raw(msgspec.json.encode(cluster.map)), media_type="application/json")

    return [tell_map, *(_handler(what, cluster_of) for what in LOOK_KINDS)]


def _handler(what: str, cluster_of: ClusterOf) -> HTTPRouteHandler:
    role = LOOK_KINDS[what].role

    @get(
        f"/looks/{what}",
        opt={"role": ROLES[role]},
        summary=f"One look at {what} of one node",
        description=f"For programs; wants the role {role}. `failed` says why the node did not answer.",
        operation_id=f"look_{what}",
    )
    async def look(
        request: Request[Any, Any, Any],
        node: Node,
        after: Text = "",
        limit: Limit = 100,
        columns: Columns = "",
        where: Where = "{}",
        wait_ms: Wait = 0,
    ) -> SingleQuery:
        try:
            conditions = _conditions(where.encode())
        except ValueError as error:
            raise Problem(400, "bad_request", f"where: {error}") from None
        cluster = await cluster_of(request.state.caller, NODE_S)
        names = [name for name in columns.split(",") if name]
        question = QueryTemplate(what, conditions, names, cluster.actor, cluster.role, wait_ms)
        return one_look(await cluster.links.look(node, question, after, limit, NODE_S + wait_ms / 1_000))

    return look


def waits(path: str, query: bytes) -> bool:
    """Return whether a request may stay for a while: a look that waits for news."""
    return "/looks/" in path and any(part.startswith(WAIT) and part != WAIT + b"0" for part in query.split(b"&"))
